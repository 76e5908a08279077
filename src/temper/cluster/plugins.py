"""Methods and perspectives of a file or module that a user names."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType

from temper.errors import SettingError
from temper.importing import import_named
from temper.methods.registry import registering

CONTRACT = "temper.evaluation.perspectives.registry"
_LOADED: dict[str, None] = {}


def load(what: str) -> ModuleType:
    """Import a file or a module, so that its methods and perspectives are known.

    Args:
        what: Path of a ``.py`` file, or the dotted name of an importable module.

    Returns:
        The module. A file or module that was imported before is not run again.

    Raises:
        SettingError: If it is not there, its name is another module's, or its code fails; the
            message gives the line. If one of its perspectives has the name of another.
    """
    with registering():
        module = import_named(what, purpose="methods and perspectives")
        # A module that has a perspective has imported their contract.
        if CONTRACT in sys.modules:
            from temper.evaluation.perspectives import names, register_all

            names()  # First ours, so that theirs is the name that is taken.
            try:
                register_all(module)
            except ValueError as error:
                raise SettingError(f"{what}: {error} Give yours another name.") from error
    _LOADED[what] = None
    return module


def load_all(names: Iterable[str]) -> None:
    """Import the plugins of another process; see `load`.

    Args:
        names: The result of `loaded` in that process.
    """
    for name in names:
        load(name)


def loaded() -> tuple[str, ...]:
    """Return the plugins that `load` has imported, for another process."""
    return tuple(_LOADED)
