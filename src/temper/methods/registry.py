"""The registry: name to method class. Contract tests, the command line and the docs read it.

Other packages can add methods. A package offers its methods by an entry point, whose module
registers them when it is imported::

    [project.entry-points."temper.methods"]
    my_method = "my_package.my_method"

Other files and modules are imported only if ``--import`` names them.
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
"""The method of a run that names none."""
ALIASES = {"vanilla": DEFAULT}
"""Aliases of methods, which are replaced when a name is read."""
GROUP = "temper.methods"
"""Entry points by which other packages offer methods."""

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
        """Resources that only the method's losses or rule may use, with its default settings."""
        method = self.config()
        return {
            "losses": sorted(method.plan(Step()).conflicts),
            "rule": sorted(method.rule.conflicts),
        }

    @property
    def conflicts_text(self) -> str:
        """`conflicts` as text."""
        conflicts = self.conflicts
        parts = [", ".join(conflicts["losses"])] if conflicts["losses"] else []
        parts += [f"rule: {', '.join(conflicts['rule'])}"] if conflicts["rule"] else []
        return "; ".join(parts)


def register(
    name: str, *, summary: str, cost: str, memory: str, paper: str
) -> Callable[[type[Method]], type[Method]]:
    """Register a method's class under a name.

    Args:
        name: Name on the command line.
        summary: One line for tables.
        cost: Forward passes a step, for example ``"3F + 3KF"``.
        memory: Memory in addition to that of plain fine-tuning: copies of the weights, activations.
        paper: Source.

    Raises:
        ValueError: If the name is taken.
    """

    def add(config: type[Method]) -> type[Method]:
        if name in _ENTRIES:
            raise ValueError(f"A method named {name!r} is registered already.")
        config.NAME = name
        _ENTRIES[name] = Entry(name, summary, cost, memory, paper, config)
        return config

    return add


@cache
def _load() -> None:
    """Import every module of the package, then those that installed packages offer."""
    package = importlib.import_module("temper.methods")
    # All of them, so that a new method is one new file.
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"temper.methods.{module.name}")
    load_installed()


def registered() -> frozenset[str]:
    """Return the names that are registered so far, without importing anything."""
    return frozenset(_ENTRIES)


def forget_since(before: frozenset[str]) -> None:
    """Unregister methods added since ``before``, an earlier `registered`, by code that failed."""
    for name in registered() - before:
        del _ENTRIES[name]


def names() -> list[str]:
    """Return the names of all methods, ``plain`` first."""
    _load()
    return sorted(_ENTRIES, key=lambda name: (name != DEFAULT, name))


def entry(name: str) -> Entry:
    """Return the entry of a method or alias; raise a `SettingError` if there is none."""
    _load()
    name = ALIASES.get(name, name)
    if name not in _ENTRIES:
        raise SettingError(_unknown_method(name))
    return _ENTRIES[name]


def name_of(method: Method) -> str:
    """Return the name that `configure` builds a method from; raise if it is not registered."""
    registered_names = {known.config: known.name for known in _ENTRIES.values()}
    result = []
    for member in method.composed():
        if type(member) not in registered_names:
            raise SettingError(
                f"{type(member).__name__} is not a registered method. Register it with "
                "@register(...)."
            )
        result.append(registered_names[type(member)])
    return " + ".join(result)


def load_installed() -> None:
    """Import the methods that installed packages offer; raise a `SettingError` if one fails."""
    for point in entry_points(group=GROUP):
        name = f"the entry point {point.name} = {point.value} ({GROUP})"
        with _restored():
            run_import(name, point.load, purpose="methods")


@contextmanager
def registering() -> Iterator[None]:
    """Run a user's code inside the `with` block; restore the registry if it fails."""
    # Our methods first, so that the error on a name that is taken is about the user's method.
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
    """Split a name into those of the composed methods, in order; nothing is looked up.

    Example:
        >>> members_of("vanilla + r_drop")
        ['plain', 'r_drop']
    """
    members = [member.strip() for member in name.split("+")]
    return [ALIASES.get(member, member) for member in members]


def _unknown_method(name: str) -> str:
    # As --model names a predictor: FILE.py:NAME.
    if match := re.search(r"(\S+\.py)(:|$)", name):
        return (
            f"{name!r} names a file. Register its methods with --import {match[1]} (in Python: "
            "import it), and give the name that they are registered under."
        )
    return f"{unknown('method', name, names())} A method of yours needs --import FILE.py."


def name_faults(name: str) -> list[str]:
    """Return one line per fault of a method's name, composed or not; settings are not checked."""
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
