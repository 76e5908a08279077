"""Composition: add the losses of several methods, and chain their update rules.

For example, ``r_drop + adv_weight`` minimizes R-Drop's loss with SAM's step. Methods that conflict
raise an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from temper.backward.rule import UpdateRule
from temper.errors import CompositionError, FieldError, SettingError, TemperError, brief
from temper.forward.plan import Plan, merge
from temper.heads import Head
from temper.methods.method import Method
from temper.methods.registry import entry, members_of, name_faults, name_of, names
from temper.types import Step


class Composed(Method):
    """Several methods as one method.

    Raises:
        CompositionError: If two methods conflict, or there is none.
    """

    methods: tuple[Method, ...]

    @property
    def name(self) -> str:
        return " + ".join(method.name for method in self.methods)

    def check(self) -> None:
        if not self.methods:
            raise CompositionError("A composition needs at least one method, got none.")
        # The rules' conflicts; `plan` raises on those of the losses.
        for index, later in enumerate(self.methods):
            for earlier in self.methods[:index]:
                if shared := sorted(earlier.rule.conflicts & later.rule.conflicts):
                    raise CompositionError(
                        f"{earlier.name!r} and {later.name!r} both use the {shared[0]} in "
                        "their update rules, and only one method may. Leave one of them out, or "
                        "switch its update rule off in its settings (for example mask=off)."
                    )
        self.plan(Step())

    def settings(self) -> dict[str, Any]:
        return {method.name: method.settings() for method in self.methods}

    def composed(self) -> Sequence[Method]:
        return self.methods

    def plan(self, now: Step) -> Plan:
        return merge([(method.name, method.plan(now)) for method in self.methods])

    def update(self) -> Sequence[UpdateRule]:
        return [rule for method in self.methods for rule in method.update()]

    def check_head(self, head: type[Head]) -> None:
        for method in self.methods:
            method.check_head(head)


def compose(*methods: Method | str) -> Method:
    """Compose methods: add their losses, and chain their update rules.

    Args:
        methods: Methods, or names of methods with default settings.

    Raises:
        CompositionError: If two methods conflict, one is named twice, or none is given.
        SettingError: For an unknown name, or an argument that is not a method.

    Example:
        >>> compose("r_drop", "adv_weight").name
        'r_drop + adv_weight'
    """
    members = tuple(member for method in methods for member in build(method).composed())
    named = [name_of(member) for member in members]
    twice = next((name for name in named if named.count(name) > 1), None)
    if twice is not None:
        raise CompositionError(
            f"The method {twice!r} is named twice in {' + '.join(named)!r}. Name each method once."
        )
    return Composed(methods=members)


def configure(
    name: str, settings: Mapping[str, Any] | None = None, *, prefix: str | None = None
) -> Method:
    """Create a method from its name and a dict of settings.

    Args:
        name: A registered name, or several with ``+`` between.
        settings: Setting -> value. The key ``preset`` selects a preset, which other keys override.
            For a composition: method -> dict of settings.
        prefix: Prefix of setting names in errors, for example ``"method."``; the default is the
            name of the method's class.

    Raises:
        SettingError: For an unknown name or setting, or an invalid value; it lists all errors.
        CompositionError: If the methods do not compose.

    Example:
        >>> configure("r_drop", {"weight": 2.0}).weight
        2.0
    """
    if "+" in name:
        return _configure_composed(name, settings or {}, prefix)
    config, values = entry(name).config, dict(settings or {})
    preset = values.pop("preset", None)
    try:
        return config(**values) if preset is None else config.preset(preset, **values)
    except FieldError as error:
        raise (error if prefix is None else error.under(prefix)) from None


def build(method: Method | str) -> Method:
    """Return a method itself, or create it from a name or from names joined by ``+``.

    Raises:
        SettingError: For an unknown name or another type.
        CompositionError: If the methods do not compose.
    """
    if isinstance(method, str):
        return configure(method)
    given: object = method
    if not isinstance(given, Method):
        hint = f" Pass an instance: {given.__name__}()." if isinstance(given, type) else ""
        raise SettingError(f"Expected a method or its name, got {brief(given)}.{hint}")
    return given


def smoothed(method: Method, smoothing: float) -> Method:
    """Add label smoothing to all task losses of a method, clean and attacked."""
    if not smoothing:
        return method
    if "label smoothing" in method.plan(Step()).conflicts:
        raise CompositionError(
            f"{method.name!r} and 'label_smoothing_factor' both smooth the labels. Leave one of "
            "them out."
        )
    return compose(method, configure("label_smoothing", {"smoothing": smoothing}))


def _configure_composed(name: str, settings: Mapping[str, Any], prefix: str | None) -> Method:
    """Create a composition from method -> dict of settings; see `configure`."""
    named, faults = members_of(name), name_faults(name)
    for key, table in settings.items():
        if key not in named:
            faults.append(
                f"`method.{key}` cannot be set for the composition {name!r}: its settings are "
                f"written method.NAME.KEY, with NAME one of {', '.join(named)}."
            )
        elif not isinstance(table, Mapping):
            faults.append(f"`method.{key}` must be a table of settings, got {table!r}.")
    members: list[Method] = []
    for method in named:
        table = settings.get(method, {})
        # Unknown names and values that are no tables are already in `faults`.
        if method not in names() or not isinstance(table, Mapping):
            continue
        inner = None if prefix is None else f"{prefix}{method}."
        try:
            members.append(configure(method, table, prefix=inner))
        except TemperError as error:
            faults += str(error).splitlines()
    if faults:
        raise SettingError("\n".join(dict.fromkeys(faults)))
    return compose(*members)
