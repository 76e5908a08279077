"""Methods and perspectives of a file or module that a user names."""

from __future__ import annotations

import sys
from types import ModuleType

from temper.errors import SettingError
from temper.importing import import_named
from temper.methods.registry import registering

CONTRACT = "temper.evaluation.perspectives.registry"
_LOADED: dict[str, None] = {}


def load(what: str) -> ModuleType:
    """Import a ``.py`` file or a module, which registers its methods and perspectives.

    Raises:
        SettingError: If it cannot be imported, or a perspective with the same name exists.
    """
    with registering():
        module = import_named(what, purpose="methods and perspectives")
        # A module that has a perspective has imported their contract.
        if CONTRACT in sys.modules:
            from temper.evaluation.perspectives import names, register_all

            # The built-in ones first, so that an error about a taken name is about the user's.
            names()
            try:
                register_all(module)
            except ValueError as error:
                raise SettingError(f"{what}: {error} Rename yours.") from error
    _LOADED[what] = None
    return module


def loaded() -> tuple[str, ...]:
    """Return the files and modules that `load` has imported, to import them in another process."""
    return tuple(_LOADED)
