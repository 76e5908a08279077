"""Methods of your own: those of installed packages, and those of a file or module that you name.

A package offers its methods by an entry point, whose module registers them when it is imported::

    [project.entry-points."temper.methods"]
    my_method = "my_package.my_method"

A file or module is imported only where ``--import`` or `load` names it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from temper.errors import SettingError

GROUP = "temper.methods"


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
    from temper.methods.registry import names

    # First ours: a method that takes the name of one is then told so, and not the other way round.
    names()
    if not what.endswith(".py"):
        return _run(what, lambda: importlib.import_module(what))
    path = Path(what).resolve()
    if not path.is_file():
        raise SettingError(f"There is no file {what} to import methods from.")
    there = sys.modules.get(path.stem)
    if there is not None:
        if Path(getattr(there, "__file__", None) or "").resolve() == path:
            return there
        raise SettingError(
            f"{what} cannot be imported: a module named {path.stem!r} is loaded already, from "
            f"{getattr(there, '__file__', 'the interpreter')}. Give the file another name."
        )
    return _run(what, lambda: _from_file(path))


def load_installed() -> None:
    """Import the methods that installed packages offer.

    Raises:
        SettingError: If the code of one fails; the message names it.
    """
    for point in entry_points(group=GROUP):
        _run(f"the entry point {point.name} = {point.value} ({GROUP})", point.load)


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


def _run(what: str, act: Callable[[], ModuleType]) -> ModuleType:
    """Run somebody's code; on failure leave the registry as it was and say where it failed."""
    from temper.methods.registry import forget_since, registered

    before = registered()
    try:
        return act()
    except Exception as error:
        forget_since(before)
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise SettingError(
            f"Importing methods from {what} failed: {type(error).__name__}: {error} "
            f"({place.filename}, line {place.lineno})."
        ) from error
