"""All perspectives: a new one is a file beside this one, and no list to keep.

An installed package offers its own by an entry point, a `Perspective` or a module that holds some::

    [project.entry-points."temper.perspectives"]
    my_perspective = "my_package.my_perspective"

A file or module of one's own is imported where ``--import`` names it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib.metadata import entry_points
from types import ModuleType

from temper.errors import SettingError, unknown
from temper.evaluation.perspectives.contract import Perspective
from temper.importing import run_import

PACKAGE = "temper.evaluation.perspectives"
GROUP = "temper.perspectives"
"""Entry points by which other packages offer perspectives."""
ALIASES = ("all", "default")
"""Words that stand for several perspectives."""

_PERSPECTIVES: dict[str, Perspective] = {}


def register(perspective: Perspective) -> Perspective:
    """Add a perspective.

    Args:
        perspective: One whose name no other has.

    Returns:
        The same.

    Raises:
        ValueError: The name is taken.
    """
    if _PERSPECTIVES.setdefault(perspective.name, perspective) is not perspective:
        raise ValueError(f"A perspective named {perspective.name!r} is registered already.")
    return perspective


def register_all(module: ModuleType) -> None:
    """Add every perspective that a module holds.

    Args:
        module: A file of this package, or somebody's own.

    Raises:
        ValueError: A name is taken.
    """
    for value in vars(module).values():
        if isinstance(value, Perspective):
            register(value)


@contextmanager
def registered_for_a_while(perspective: Perspective) -> Iterator[None]:
    """Have a perspective known inside a block, whether it is registered or not.

    Args:
        perspective: The perspective.
    """
    _load()
    before = _PERSPECTIVES.get(perspective.name)
    _PERSPECTIVES[perspective.name] = perspective
    try:
        yield
    finally:
        del _PERSPECTIVES[perspective.name]
        if before is not None:
            _PERSPECTIVES[perspective.name] = before


@cache
def _load() -> None:
    """Import every file beside this one, then what installed packages offer."""
    package = importlib.import_module(PACKAGE)
    for file in pkgutil.iter_modules(package.__path__):
        register_all(importlib.import_module(f"{PACKAGE}.{file.name}"))
    for point in entry_points(group=GROUP):
        name = f"the entry point {point.name} = {point.value} ({GROUP})"
        offered = run_import(name, partial(point.load), purpose="perspectives")
        if isinstance(offered, Perspective):
            register(offered)
        else:
            register_all(offered)


def perspectives() -> dict[str, Perspective]:
    """Return all perspectives by name, in the order of reports."""
    _load()
    ordered = sorted(_PERSPECTIVES.values(), key=lambda entry: entry.place)
    return {entry.name: entry for entry in ordered}


def names() -> tuple[str, ...]:
    """Return the names of all perspectives in the order of reports."""
    return tuple(perspectives())


def defaults() -> tuple[str, ...]:
    """Return the names of the perspectives that are measured where nobody says what is."""
    return tuple(name for name, entry in perspectives().items() if entry.by_default)


def perspective(name: str) -> Perspective:
    """Return a perspective by name.

    Args:
        name: Its name.

    Raises:
        SettingError: There is none of that name.

    Example:
        >>> perspective("calibration").directions["ece_10"]
        False
    """
    known = perspectives()
    if name not in known:
        raise SettingError(unknown("perspective", name, known))
    return known[name]


def listing() -> list[dict[str, object]]:
    """Return what ``temper list perspectives`` shows: one mapping each, with ``name`` first."""
    return [
        {
            "name": entry.name,
            "summary": entry.summary,
            "scores": list(entry.score_names),
            "higher_is_better": entry.directions,
            "needs": entry.needs,
            "by_default": entry.by_default,
        }
        for entry in perspectives().values()
    ]
