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
    """Import a ``.py`` file or a module, so that its methods and perspectives are known.

    Raises:
        SettingError: As `import_named`, or one of its perspectives has the name of another.
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
    """Import the plugins that `loaded` named in another process."""
    for name in names:
        load(name)


def loaded() -> tuple[str, ...]:
    """Return the plugins that `load` has imported, for another process."""
    return tuple(_LOADED)
