"""The registry of methods: name -> class and description.

Installed packages can add methods by an entry point, whose module registers them on import::

    [project.entry-points."temper.methods"]
    my_method = "my_package.my_method"

The user's own files are imported with ``--import``.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points

from temper.errors import SettingError, unknown
from temper.importing import run_import
from temper.methods.method import Method
from temper.types import Step

DEFAULT = "plain"
"""Name of the default method."""
ALIASES = {"vanilla": DEFAULT}
"""Alias -> name of the method."""
GROUP = "temper.methods"
"""Group of entry points by which other packages add methods."""

_ENTRIES: dict[str, Entry] = {}


@dataclass(frozen=True)
class Entry:
    """A registered method; its fields are those of `register`."""

    name: str
    summary: str
    cost: str
    memory: str
    paper: str
    config: type[Method]

    @property
    def conflicts(self) -> dict[str, list[str]]:
        """Resources that only one method may use: those of its ``losses`` and of its ``rule``."""
        method = self.config()
        return {
            "losses": sorted(method.plan(Step()).conflicts),
            "rule": sorted(method.rule.conflicts),
        }

    @property
    def incompatible(self) -> list[str]:
        """Names of the methods that use the same resources, so they cannot be combined with it."""
        ours = self.conflicts

        def conflicts_with(other: str) -> bool:
            theirs = entry(other).conflicts
            return any(set(ours[part]) & set(theirs[part]) for part in ours)

        return [other for other in names() if other != self.name and conflicts_with(other)]


def register(
    name: str, *, summary: str, cost: str, memory: str, paper: str
) -> Callable[[type[Method]], type[Method]]:
    """Return a class decorator that registers a method.

    Args:
        name: Name on the command line.
        summary: One line for tables.
        cost: Cost of a step in forward passes F, for example ``"3F + 3KF"``.
        memory: Additional memory compared to plain fine-tuning.
        paper: Citation.

    Raises:
        ValueError: If the name is taken.
    """

    def add(config: type[Method]) -> type[Method]:
        if name in _ENTRIES:
            raise ValueError(f"A method named {name!r} is registered already. Choose another name.")
        config.NAME = name
        _ENTRIES[name] = Entry(name, summary, cost, memory, paper, config)
        return config

    return add


@cache
def _load() -> None:
    """Import all modules of this package, then the methods of installed packages."""
    package = importlib.import_module("temper.methods")
    # All modules, so that a new method only needs a new file.
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"temper.methods.{module.name}")
    for point in entry_points(group=GROUP):
        name = f"the entry point {point.name} = {point.value} ({GROUP})"
        with _restored():
            run_import(name, point.load, purpose="methods")


def registered() -> frozenset[str]:
    """Return the names registered so far, without imports."""
    return frozenset(_ENTRIES)


def forget_since(before: frozenset[str]) -> None:
    """Unregister the methods that are not in ``before``, after an import that failed."""
    for name in registered() - before:
        del _ENTRIES[name]


def names() -> list[str]:
    """Return the names of all methods, ``plain`` first."""
    _load()
    return sorted(_ENTRIES, key=lambda name: (name != DEFAULT, name))


def entry(name: str) -> Entry:
    """Return the entry of a method by name or alias; raise a `SettingError` if it is unknown."""
    _load()
    name = ALIASES.get(name, name)
    if name not in _ENTRIES:
        raise SettingError(_unknown_method(name))
    return _ENTRIES[name]


def name_of(method: Method) -> str:
    """Return the registered name of a method; raise a `SettingError` if it has none."""
    registered_names = {known.config: known.name for known in _ENTRIES.values()}
    result = []
    for member in method.composed():
        if type(member) not in registered_names:
            raise SettingError(
                f"{type(member).__name__} is not a registered method. Decorate the class "
                "with @register(...)."
            )
        result.append(registered_names[type(member)])
    return " + ".join(result)


@contextmanager
def registering() -> Iterator[None]:
    """Context manager for importing a user's code; restore the registry if it fails."""
    # Register our methods first, so that an error about a taken name names the user's method.
    _load()
    with _restored():
        yield


@contextmanager
def _restored() -> Iterator[None]:
    before = registered()
    try:
        yield
    except SettingError:
        forget_since(before)
        raise


def members_of(name: str) -> list[str]:
    """Split the name of a composition into the names of its methods, with aliases replaced.

    Example:
        >>> members_of("vanilla + r_drop")
        ['plain', 'r_drop']
    """
    members = [member.strip() for member in name.split("+")]
    return [ALIASES.get(member, member) for member in members]


def _unknown_method(name: str) -> str:
    # Users may write FILE.py:NAME, as --model takes it.
    if match := re.search(r"(\S+\.py)(:|$)", name):
        return (
            f"{name!r} names a file. Register its methods with --import {match[1]} (in Python: "
            "import it), and pass the name that they are registered under."
        )
    return f"{unknown('method', name, names())} For a method of your own, add --import FILE.py."


def name_faults(name: str) -> list[str]:
    """Return one error message for each unknown or missing method in a name."""
    result = []
    for member in members_of(name):
        if not member:
            result.append(
                f"A method's name is missing in {name!r}. Write names with `+` between, for "
                "example 'r_drop + at'."
            )
        elif member not in names():
            result.append(_unknown_method(member))
    return list(dict.fromkeys(result))
