"""Composition: the losses of several methods add, their update rules follow each other.

``r_drop + adv_weight`` minimizes R-Drop's loss with SAM's step. Two methods that conflict raise an
error that names both.
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
    """Several methods in one, each once.

    Raises:
        CompositionError: If two methods conflict.
    """

    methods: tuple[Method, ...]

    @property
    def name(self) -> str:
        return " + ".join(method.name for method in self.methods)

    def check(self) -> None:
        # The rules' conflicts; `plan` raises on those of the losses.
        for index, later in enumerate(self.methods):
            for earlier in self.methods[:index]:
                if shared := sorted(earlier.rule.conflicts & later.rule.conflicts):
                    raise CompositionError(
                        f"{earlier.name!r} and {later.name!r} both use the {shared[0]} of the "
                        "update rule. Leave one of them out, or switch the update rule of one off "
                        "in its settings (for example mask=off)."
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
    """Compose methods: their losses add, their update rules follow each other.

    Args:
        methods: Methods, or names of methods with default settings.

    Raises:
        CompositionError: If two methods conflict or one is named twice; it names both. If no
            method is given.
        SettingError: For an unknown name, and for what is no method.

    Example:
        >>> compose("r_drop", "adv_weight").name
        'r_drop + adv_weight'
    """
    members = tuple(member for method in methods for member in build(method).composed())
    if not members:
        raise CompositionError("A composition needs at least one method, got none.")
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
    """Create a method from plain values.

    Args:
        name: A registered name, or several with ``+`` between.
        settings: Values by field; ``preset`` selects published settings, which the others override.
            For a composition, one table of values per method.
        prefix: Prefix of setting names in errors, for example ``"method."``; None for the name of
            the method's class.

    Raises:
        SettingError: For an unknown name, field or value, all faults at once.
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
    """Return a method from a method, its name, or several names with ``+`` between.

    Raises:
        SettingError: For an unknown name, and for anything else.
        CompositionError: If the methods do not compose.
    """
    if isinstance(method, str):
        return configure(method)
    given: object = method
    if not isinstance(given, Method):
        hint = f" Give an instance: {given.__name__}()." if isinstance(given, type) else ""
        raise SettingError(f"Expected a method or its name, got {brief(given)}.{hint}")
    return given


def smoothed(method: Method, smoothing: float) -> Method:
    """Return a method with the labels smoothed in every task loss, clean and attacked."""
    if not smoothing:
        return method
    if "label smoothing" in method.plan(Step()).conflicts:
        raise CompositionError(
            f"{method.name!r} and 'label_smoothing_factor' both smooth the labels. Leave one of "
            "them out."
        )
    return compose(method, configure("label_smoothing", {"smoothing": smoothing}))


def _configure_composed(name: str, settings: Mapping[str, Any], prefix: str | None) -> Method:
    """Create a composition from one table of values per method; see `configure`."""
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
        # Other names and values are among the faults already.
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
