"""The registry: name to settings class. Contract tests, the command line and the docs read it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from temper.errors import FieldError, SettingError, unknown
from temper.methods.declared import Declaration, in_order, is_composed
from temper.methods.method import Method, MethodConfig

DEFAULT = "uegr"
"""The method of a run that names none."""

_ENTRIES: dict[str, Entry] = {}


@dataclass(frozen=True)
class Entry(Declaration):
    """A registered method.

    Args:
        name: Name on the command line.
        summary: One line.
        cost: Forward passes a step, vanilla being 3F.
        memory: What it holds beside plain fine-tuning.
        paper: Source.
        claims: What only one method of a composition may hold, as `claimed` says it.
        config: Settings class.
    """

    config: type[MethodConfig]

    @property
    def slots(self) -> dict[str, list[str]]:
        """What the method with its default settings claims, so that no other may beside it."""
        method = self.config().build()
        return {
            "objective": sorted(getattr(method.objective, "slots", ())),
            "rule": sorted(method.rule.slots),
        }

    @property
    def claimed(self) -> str:
        """The slots as ``claims`` must say them.

        Example:
            >>> entry("uegr").claimed
            'perturbation, sub-models; rule: mask'
        """
        slots = self.slots
        parts = [", ".join(slots["objective"])] if slots["objective"] else []
        parts += [f"rule: {', '.join(slots['rule'])}"] if slots["rule"] else []
        return "; ".join(parts)


def register(
    name: str, *, summary: str, cost: str, memory: str, paper: str, claims: str = ""
) -> Callable[[type[MethodConfig]], type[MethodConfig]]:
    """Register a settings class under a name.

    Args:
        name: Name on the command line.
        summary: One line for tables.
        cost: Forward passes a step, for example ``"3F + 3KF"``.
        memory: What it holds beside plain fine-tuning: copies of the weights, activations.
        paper: Source.
        claims: What only one method of a composition may hold, for example
            ``"perturbation; rule: mask"``.

    Raises:
        ValueError: If the name is taken.
    """

    def add(config: type[MethodConfig]) -> type[MethodConfig]:
        if name in _ENTRIES:
            raise ValueError(f"A method named {name!r} is registered already.")
        _ENTRIES[name] = Entry(name, summary, cost, memory, paper, claims, config)
        return config

    return add


@cache
def _load() -> None:
    """Import every module beside this one: a new method is one new file and no list to keep.

    Then those that installed packages offer as entry points.
    """
    package = importlib.import_module("temper.methods")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"temper.methods.{module.name}")
    from temper.methods.plugins import load_installed

    load_installed()


def registered() -> frozenset[str]:
    """Return the names that are registered so far; nothing is imported for it."""
    return frozenset(_ENTRIES)


def forget_since(before: frozenset[str]) -> None:
    """Take back what was registered since then, by code that failed half-way.

    Args:
        before: What `registered` gave.
    """
    for name in registered() - before:
        del _ENTRIES[name]


def names() -> list[str]:
    """Return the names of all methods, ``vanilla`` first.

    Example:
        >>> names()[0]
        'vanilla'
    """
    _load()
    return in_order(_ENTRIES)


def entry(name: str) -> Entry:
    """Return a method's entry.

    Args:
        name: A registered name.

    Raises:
        SettingError: If no method has that name; near matches are listed.
    """
    _load()
    if name not in _ENTRIES:
        raise SettingError(unknown("method", name, _ENTRIES))
    return _ENTRIES[name]


def configure(
    name: str, settings: Mapping[str, Any] | None = None, *, prefix: str | None = None
) -> MethodConfig:
    """Make a method's settings from plain values.

    Args:
        name: A registered name, or several with ``+`` between. ``NAME.objective`` and
            ``NAME.rule`` take one half of a method.
        settings: Values by field; ``preset`` picks published settings that the others override. Of
            several methods, a table of such values by method.
        prefix: What stands before a setting's name in errors, ``"method."`` where it was written
            so; None for the name of the settings class.

    Raises:
        SettingError: For an unknown name, field or value, all faults at once.
        CompositionError: If the methods do not compose.

    Example:
        >>> configure("r_drop", {"weight": 2.0}).weight
        2.0
    """
    if is_composed(name):
        from temper.methods.composition import configure_composed

        return configure_composed(name, settings or {}, prefix=prefix)
    chosen = entry(name)
    values = dict(settings or {})
    preset = values.pop("preset", None)
    config = chosen.config
    try:
        return config(**values) if preset is None else config.preset(preset, **values)
    except FieldError as error:
        raise (error if prefix is None else error.under(prefix)) from None


def name_of(config: MethodConfig) -> str:
    """Return the name that a settings class is registered under.

    Args:
        config: A method's settings.

    Raises:
        SettingError: If the class is not registered.
    """
    for found in _ENTRIES.values():
        if found.config is type(config):
            return found.name
    raise SettingError(
        f"{type(config).__name__} is not a registered method. Register it with @register(...)."
    )


def build(method: Method | MethodConfig | str) -> Method:
    """Return a method from a method, its settings or its name.

    Args:
        method: One of the three; a name takes the default settings, and may be several with ``+``
            between.

    Raises:
        SettingError: If no method has that name.
        CompositionError: If the methods do not compose.

    Example:
        >>> build("vanilla").name
        'vanilla'
    """
    if isinstance(method, Method):
        return method
    if isinstance(method, type):
        raise SettingError(
            f"Expected a method, its settings or its name, got the class {method.__name__}. Give "
            f"settings: {method.__name__}()."
        )
    if isinstance(method, MethodConfig):
        return method.build()
    return configure(method).build()
