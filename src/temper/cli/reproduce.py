"""``temper reproduce``: run the repository's package `reproduction`, if it is available."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import temper
from temper.errors import SettingError

# An editable install imports the package from a clone; `reproduction` is at its root.
CLONE = Path(temper.__file__).parents[2]


def reproduce(
    context: typer.Context,
    arguments: Annotated[list[str] | None, typer.Argument(metavar="TABLE ...")] = None,
) -> None:
    """Reproduce a table or figure of the papers; a stopped run is resumed."""
    if (CLONE / "reproduction" / "command.py").exists() and str(CLONE) not in sys.path:
        sys.path.append(str(CLONE))
    try:
        from reproduction.command import main
    except ModuleNotFoundError as error:
        if error.name not in ("reproduction", "reproduction.command"):
            raise
        raise SettingError(
            "The papers' tables are in Temper's repository and not in the installed package. Clone "
            "it, run `make install` there, and run this command again."
        ) from error
    temper_command = context.find_root().command
    main(arguments or (), run=partial(temper_command.main, standalone_mode=False))
