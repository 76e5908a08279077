"""Import code that a user names, with errors that give the line of the fault."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from temper.errors import SettingError


def import_named(what: str, *, purpose: str) -> ModuleType:
    """Import a ``.py`` file, or a module by its dotted name, unless it is loaded already.

    The code runs with all rights of the process. ``purpose`` names in errors what is imported, such
    as "predictors".

    Raises:
        SettingError: The file or module does not exist, another module has its name, or its code
            fails.
    """
    if not what.endswith(".py"):
        return run_import(what, lambda: importlib.import_module(what), purpose=purpose)
    path = Path(what).resolve()
    check_file_exists(what, purpose=purpose)
    there = sys.modules.get(path.stem)
    if there is not None:
        if Path(getattr(there, "__file__", None) or "").resolve() == path:
            return there
        raise SettingError(
            f"{what} cannot be imported: a module named {path.stem!r} is loaded already, from "
            f"{getattr(there, '__file__', 'the interpreter')}. Rename the file."
        )
    return run_import(what, lambda: _from_file(path), purpose=purpose)


def check_file_exists(what: str, *, purpose: str) -> None:
    """Raise a `SettingError` if a ``.py`` file does not exist; module names are not checked."""
    if what.endswith(".py") and not Path(what).is_file():
        raise SettingError(f"There is no file {what} to import {purpose} from.")


def on_first_use(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a package that imports public names lazily.

    ``modules`` maps each name to the submodule that defines it.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)

    return get


def run_import(what: str, act: Callable[[], ModuleType], *, purpose: str) -> ModuleType:
    """Call an import function; if it fails, raise a `SettingError` with file and line."""
    try:
        return act()
    except Exception as error:
        raise SettingError(
            f"Importing {purpose} from {what} failed: {type(error).__name__}: {error} "
            f"({location_of(error)})."
        ) from error


def location_of(error: BaseException) -> str:
    """Return the file and line that raised an exception, as text."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else "no line known"


def _from_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Before it runs: dataclasses and pydantic look a class's module up there.
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module
