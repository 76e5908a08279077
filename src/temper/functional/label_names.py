"""Compare and match class names of models and datasets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from temper.errors import ModelError, unknown

# Transformers uses these names for unnamed classes.
_PLACEHOLDER = re.compile(r"label[_ ]?(\d+)", re.IGNORECASE)
# "007" is a code, not the number 7; pandas writes 1 as "1.0" in a column with missing values.
_WHOLE = re.compile(r"(-?(?:0|[1-9]\d*))(?:\.0+)?")


def is_placeholder(name: str) -> bool:
    """Return whether a name is Transformers' default for an unnamed class, such as ``LABEL_0``."""
    return _PLACEHOLDER.fullmatch(name) is not None


def are_named(names: Sequence[str] | None) -> bool:
    """Return whether classes have real names, not only placeholders."""
    return bool(names) and not all(map(is_placeholder, names or ()))


def is_numeral(name: str) -> bool:
    """Return whether a class name is a whole number.

    Example:
        >>> is_numeral("-1"), is_numeral("2.0"), is_numeral("007"), is_numeral("1 star")
        (True, True, False, False)
    """
    return _WHOLE.fullmatch(name) is not None


def are_indices(names: Sequence[str]) -> bool:
    """Return whether all names are their indices, which is equivalent to having no names.

    Example:
        >>> are_indices(["0", "1"]), are_indices(["LABEL_0", "LABEL_1"]), are_indices(["1", "0"])
        (True, True, False)
    """
    return [_number(name) for name in names] == [str(index) for index in range(len(names))]


def placeholders(count: int) -> tuple[str, ...]:
    """Return Transformers' default names, ``LABEL_0`` and so on, for ``count`` classes."""
    return tuple(f"LABEL_{index}" for index in range(count))


def match_names(names: Sequence[str], known: Sequence[str]) -> list[int | None]:
    """Return the index of each name in ``known``: exact, else ignoring case, else as a number.

    It is None if a name matches none of the known names, or several.

    Example:
        >>> match_names(["pos", "Neg", "1.0", "neutral"], ["neg", "pos", "1"])
        [1, 0, 2, None]
    """
    exact = {name: index for index, name in enumerate(known)}
    looser = {kind: _unique(known, kind) for kind in (str.casefold, _number)}
    indices: list[int | None] = []
    for name in names:
        index = exact.get(name)
        for kind, index_of in looser.items():
            if index is None:
                index = index_of.get(kind(name))
        indices.append(index)
    return indices


@dataclass(frozen=True)
class GivenNames:
    """Class names from the user, which replace those of the model.

    Args:
        label_names: New names in the order of the outputs.
        label_map: Class name -> new name; the class names are those of ``label_names``, if given,
            else the model's.
    """

    label_names: Sequence[str] | None = None
    label_map: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.label_names or self.label_map)

    def applied(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the new class names of a model whose names (or placeholders) are ``names``.

        Raises:
            ModelError: The number of names is wrong, a name is unknown, or two classes get the same
                name.
        """
        new = list(names)
        if self.label_names:
            if len(self.label_names) != len(new):
                raise ModelError(
                    f"`label_names` gives {len(self.label_names)} names, "
                    f"{', '.join(self.label_names)}, and the model has {len(new)} classes, "
                    f"{', '.join(new)}. Pass one name per output."
                )
            new = list(self.label_names)
        for name in self.label_map:
            if name not in new:
                raise ModelError(
                    f"`label_map`: {unknown('class', name, new)} Map class names: those of "
                    "label_names if given, else the model's."
                )
        new = [self.label_map.get(name, name) for name in new]
        if len(set(new)) < len(new):
            twice = next(name for name in new if new.count(name) > 1)
            raise ModelError(
                f"`label_names` or `label_map` gives two classes of the model the name {twice!r}. "
                "Give each class a different name."
            )
        return tuple(new)


def _number(name: str) -> str:
    """Return the number of a numeral or placeholder (``LABEL_1`` -> ``1``); else the name."""
    placeholder = _PLACEHOLDER.fullmatch(name)
    if placeholder is not None:
        return str(int(placeholder[1]))
    numeral = _WHOLE.fullmatch(name)
    return name if numeral is None else str(int(numeral[1]))


def _unique(known: Sequence[str], kind: Callable[[str], str]) -> dict[str, int]:
    """Map normalized names to indices, without those that several names share."""
    forms = [kind(name) for name in known]
    return {form: index for index, form in enumerate(forms) if forms.count(form) == 1}
