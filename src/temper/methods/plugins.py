"""Methods of your own: those of installed packages, and those of a file or module that you name.

A package offers its methods by an entry point, whose module registers them when it is imported::

    [project.entry-points."temper.methods"]
    my_method = "my_package.my_method"

A file or module is imported only where ``--import`` or `load` names it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from types import ModuleType

from temper.errors import SettingError
from temper.importing import import_named, run_import
from temper.methods.declared import GROUP

PURPOSE = "methods"
_LOADED: dict[str, frozenset[str]] = {}


def load(what: str) -> ModuleType:
    """Import a file or a module of methods, so that they are registered.

    Args:
        what: Path of a ``.py`` file, or the dotted name of an importable module.

    Returns:
        The module. A file or module that was imported before is not run again.

    Raises:
        SettingError: If it is not there, its name is another module's, or its code fails; the
            message gives the line.
    """
    from temper.methods.registry import names, registered

    # First ours: a method that takes the name of one is then told so, and not the other way round.
    names()
    before = registered()
    module = _keeping(partial(import_named, what, purpose=PURPOSE))
    added = registered() - before
    if added:
        # A name that is free again belonged to something that was forgotten since.
        for other in [other for other, its in _LOADED.items() if its & added]:
            del _LOADED[other]
        _LOADED[what] = added
    return module


def loaded() -> tuple[str, ...]:
    """Return what `load` has imported methods from, so that another process can import it too."""
    from temper.methods.registry import registered

    return tuple(what for what, its in _LOADED.items() if its <= registered())


def load_installed() -> None:
    """Import the methods that installed packages offer.

    Raises:
        SettingError: If the code of one fails; the message names it.
    """
    for point in entry_points(group=GROUP):
        name = f"the entry point {point.name} = {point.value} ({GROUP})"
        _keeping(partial(run_import, name, point.load, purpose=PURPOSE))


def _keeping(act: Callable[[], ModuleType]) -> ModuleType:
    """Run somebody's code; on failure leave the registry as it was."""
    from temper.methods.registry import forget_since, registered

    before = registered()
    try:
        return act()
    except SettingError:
        forget_since(before)
        raise
