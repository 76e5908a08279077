"""Read evaluation suites, find their sets under the data root, and load them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from temper.data.columns import Columns
from temper.data.examples import Examples, joined
from temper.data.reading import choose_split, split_files
from temper.data.sources import load_examples
from temper.data.table import TableOptions
from temper.errors import DataError, SettingError, unknown
from temper.settings import read_toml

KINDS = ("shift", "adversarial", "anomaly")
"""The purposes that a set of a suite can have."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_FOLDER = Path(__file__).parent


class SuiteSet(BaseModel):
    """One set of a suite.

    Args:
        path: File, or folder with ``@SPLIT``, under the data root.
        parts: Name -> path of several files that form the set, instead of ``path``. The names are
            the groups of the rows unless ``group_column`` is given.
        pairs: Only with ``parts``: whether the rows of a contrast pair are all ``within`` one part
            or ``across`` parts. If within, equal pair ids in two parts are different pairs.
        rows: Maximum number of rows, drawn by hash; None takes all.
        group_column: Column of the groups; None looks for ``group``.
        rename: Label in the set -> the task's name of that label.
        without: Labels in the set that the task does not have; their rows are left out.
        hub: Id of the set on the Hugging Face Hub, for messages; nothing is downloaded.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str | None = None
    parts: dict[str, str] = Field(default_factory=dict)
    pairs: Literal["within", "across"] = "within"
    rows: Annotated[int, Field(ge=1)] | None = None
    group_column: str | None = None
    rename: dict[str, str] = Field(default_factory=dict)
    without: tuple[str, ...] = ()
    hub: str | None = None

    @model_validator(mode="after")
    def _placed(self) -> Self:
        if (self.path is None) == (not self.parts):
            raise ValueError("must have either a path or parts")
        if "pairs" in self.model_fields_set and len(self.parts) < 2:
            raise ValueError(
                "must have two parts or more for `pairs`: the rows of contrast pairs are within a "
                "part or across parts"
            )
        for path in self.paths.values():
            pure = PurePosixPath(path)
            if not path or pure.is_absolute() or ".." in pure.parts:
                raise ValueError(f"must have paths under the data root, got {path!r}")
        return self

    @property
    def paths(self) -> dict[str, str]:
        """Part -> path; a set without parts has one path, under an empty name."""
        return self.parts if self.path is None else {"": self.path}


class Suite(BaseModel):
    """The sets to evaluate a task on.

    Args:
        name: Name of the suite: that of its file.
        labels: The task's labels by index, for sets whose labels have no names.
        merge: How three NLI classes are merged for a set with two (``evaluate.merge``); None leaves
            that setting unchanged.
        shift: Name -> labeled set from another source.
        adversarial: Name -> labeled set that was made to mislead models.
        anomaly: Name -> out-of-distribution set; its labels are not read.

    Example:
        >>> read_suite("sentiment").labels
        ('negative', 'positive')
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    summary: str
    labels: Annotated[tuple[str, ...], Field(min_length=2)]
    merge: str | None = None
    shift: dict[str, SuiteSet] = Field(default_factory=dict)
    adversarial: dict[str, SuiteSet] = Field(default_factory=dict)
    anomaly: dict[str, SuiteSet] = Field(default_factory=dict)

    @field_validator(*KINDS)
    @classmethod
    def _named(cls, sets: dict[str, SuiteSet]) -> dict[str, SuiteSet]:
        odd = [name for name in sets if not _NAME.fullmatch(name) or name == "dev"]
        if odd:
            raise ValueError(
                "must name sets with letters, digits, '_', '.' and '-', and none 'dev', got "
                f"{odd[0]!r}"
            )
        return sets

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [name for kind in KINDS for name in self.sets(kind)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"must give each set a different name, got {twice[0]!r} twice")
        if not names:
            raise ValueError(f"must have at least one set, in a table [{KINDS[0]}.NAME]")
        if len(set(self.labels)) < len(self.labels):
            raise ValueError(f"must give each label a different name, got {list(self.labels)}")
        return self

    def sets(self, kind: str) -> dict[str, SuiteSet]:
        """Return the sets of one kind of `KINDS`, by name."""
        result: dict[str, SuiteSet] = getattr(self, kind)
        return result


def suite_names() -> tuple[str, ...]:
    """Return the names of the suites that come with Temper."""
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.toml")))


def read_suite(name: str) -> Suite:
    """Read a suite by its name (`suite_names`) or from a file ``NAME.toml``."""
    path = Path(name).expanduser()
    if path.suffix != ".toml":
        if name not in suite_names():
            raise SettingError(
                f"{unknown('suite', name, suite_names())} Pass your own suite as FILE.toml."
            )
        path = _FOLDER / f"{name}.toml"
    content = read_toml(path)
    if "name" in content:
        raise SettingError(
            f"Suite {path} must not set `name`: its name is that of the file. Leave it out."
        )
    try:
        return Suite.model_validate({**content, "name": path.stem})
    except ValidationError as error:
        raise SettingError("\n".join(_faults(error, path))) from error


def _faults(error: ValidationError, path: Path) -> list[str]:
    result = []
    for fault in error.errors():
        where = [str(part) for part in fault["loc"]]
        if fault["type"] == "extra_forbidden":
            known = SuiteSet if where[0] in KINDS else Suite
            keys = [name for name in known.model_fields if name != "name"]
            text = unknown("key", where.pop(), keys)
        else:
            text = f"{fault['msg'].removeprefix('Value error, ')}."
        result.append(f"The suite {path}, {'.'.join(where) or 'top'}: {text}")
    return result


Place = tuple[Path, str | None]


@dataclass(frozen=True)
class FoundSet:
    """A set of a suite that exists on this machine.

    ``places`` maps each part to its file or folder, and split.
    """

    name: str
    entry: SuiteSet
    places: dict[str, Place]

    @property
    def source(self) -> str:
        texts = [
            str(path) if split is None else f"{path}@{split}"
            for path, split in self.places.values()
        ]
        return " + ".join(texts)


@dataclass(frozen=True)
class FoundSuite:
    """A suite with the sets that exist on this machine.

    ``sets`` has the sets of each of `KINDS` by name; ``missing`` maps the others to the reason.
    """

    suite: Suite
    sets: dict[str, dict[str, FoundSet]]
    missing: dict[str, str]


def find_sets(suite: Suite, root: Path | str) -> FoundSuite:
    """Find out which sets of a suite exist under a folder, without reading them."""
    folder = Path(root).expanduser().resolve()
    if not folder.is_dir():
        raise SettingError(
            f"The data root of suite {suite.name!r} must be a folder, and {root} is not one. Pass "
            "the folder with its sets: TEMPER_DATA=DIR, or --set data_root=DIR."
        )
    sets: dict[str, dict[str, FoundSet]] = {kind: {} for kind in KINDS}
    missing: dict[str, str] = {}
    for kind in KINDS:
        for name, entry in suite.sets(kind).items():
            indices, lacking = {}, []
            for part, path in entry.paths.items():
                location = _place(folder, path)
                if location is None:
                    lacking.append(path)
                else:
                    indices[part] = location
            if lacking:
                origin = "" if entry.hub is None else f" (on the Hub as {entry.hub})"
                missing[name] = f"{', '.join(lacking)} is not under {folder}{origin}"
            else:
                sets[kind][name] = FoundSet(name, entry, indices)
    if not any(sets.values()):
        first = next(iter(missing.values()))
        raise SettingError(
            f"None of the {len(missing)} sets of suite {suite.name!r} is under {folder}: {first}. "
            "Pass the folder with the sets: TEMPER_DATA=DIR, or --set data_root=DIR."
        )
    return FoundSuite(suite, sets, missing)


def load_set(
    found: FoundSet, labels: Sequence[str] | None, reading: TableOptions | None = None
) -> Examples:
    """Load a set of a suite; its labels get the task's names.

    ``labels`` are the task's labels by index. None is for OOD sets, whose labels are not read.
    """
    entry = found.entry

    def loaded(path: Path, split: str | None) -> Examples:
        examples = load_examples(
            str(path),
            split=split,
            columns=Columns(group=entry.group_column),
            kind=None if labels is None else "classification",
            labeled=labels is not None,
            reading=reading,
        )
        if labels is None or examples.label_names is not None:
            return examples
        return examples.map_labels(labels)

    parts = {part: loaded(*location) for part, location in found.places.items()}
    if entry.parts and entry.group_column is None:
        parts = {
            part: replace(examples, group=[part] * len(examples))
            for part, examples in parts.items()
        }
    if len(parts) > 1 and entry.pairs == "within":
        parts = _paired_within(found.name, parts)
    shapes = {(part.label_names, part.text_pair is None) for part in parts.values()}
    if len(shapes) > 1:
        raise DataError(
            f"The parts of set {found.name!r} must have the same labels, and either all have "
            "pairs of texts or none. Make them separate sets in the suite."
        )
    sources = [part.source for part in parts.values()]
    source = sources[0] if len(sources) == 1 else {"parts": sources}
    examples = joined(list(parts.values()), name=found.name, source=source)
    # Labels of anomalies are not read.
    if labels is None:
        return examples
    if entry.without:
        examples = _without(examples, entry.without)
    return _renamed(examples, entry.rename) if entry.rename else examples


def _place(root: Path, text: str) -> Place | None:
    """Return the file or folder, and the split, of a path in a suite; None if missing."""
    base, _, split = text.partition("@")
    path = root / base
    if not split:
        return (path, None) if path.exists() else None
    if not path.is_dir():
        return None
    try:
        return path, choose_split(split_files(path), split, title=text)
    except DataError:
        return None


def _paired_within(name: str, parts: dict[str, Examples]) -> dict[str, Examples]:
    """Put the part's name before each pair id, because parts may use the same ids."""
    ids = [{pair for pair in part.pair or () if pair is not None} for part in parts.values()]
    rows = [sum(pair is not None for pair in part.pair or ()) for part in parts.values()]
    whole = any(len(names) < paired for names, paired in zip(ids, rows, strict=True))
    if not whole and sum(map(len, ids)) > len(set().union(*ids)):
        raise DataError(
            f"The parts of set {name!r} must each have whole contrast pairs, but none has two "
            'rows of one pair, and two parts name the same pair. Write `pairs = "across"` in the '
            "suite if a pair's rows are in different parts."
        )
    return {
        key: part
        if part.pair is None
        else replace(part, pair=[None if pair is None else f"{key}/{pair}" for pair in part.pair])
        for key, part in parts.items()
    }


def _known(examples: Examples, names: Iterable[str], key: str) -> tuple[str, ...]:
    """Return the labels of a set; raise if setting ``key`` of the suite names another one."""
    known = examples.label_names or ()
    for name in names:
        if name not in known:
            raise DataError(
                f"Set {examples.name!r}, `{key}`: {unknown('label', name, known)} Correct the "
                "suite."
            )
    return known


def _renamed(examples: Examples, names: Mapping[str, str]) -> Examples:
    called = tuple(names.get(name, name) for name in _known(examples, names, "rename"))
    twice = sorted({name for name in called if called.count(name) > 1})
    if twice:
        raise DataError(
            f"Set {examples.name!r}: `rename` gives two labels the name {twice[0]!r}. Correct the "
            "suite."
        )
    return replace(examples, label_names=called)


def _without(examples: Examples, names: Sequence[str]) -> Examples:
    known = _known(examples, names, "without")
    out = {known.index(name) for name in names}
    kept = [index for index, label in enumerate(examples.labels or []) if label not in out]
    if not kept:
        raise DataError(
            f"Set {examples.name!r} has only rows with the labels {list(names)}, which `without` "
            "leaves out. Correct the suite."
        )
    notice = (
        f"{len(examples) - len(kept)} rows of set {examples.name!r} are left out, because the "
        f"task has no label {' or '.join(map(repr, names))}."
    )
    return replace(examples.select(kept), notices=(*examples.notices, notice))
