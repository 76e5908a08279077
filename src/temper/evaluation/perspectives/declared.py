"""The names of the perspectives, read from their files without importing torch."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from temper.errors import unknown
from temper.importing import calls_in

GROUPS = ("all", "default")
"""Words that stand for several perspectives."""


@cache
def declared() -> tuple[str, ...]:
    """Return the names of all perspectives.

    Example:
        >>> "calibration" in declared()
        True
    """
    return tuple(
        ast.literal_eval(each.value)
        for call in calls_in(Path(__file__).parent, "Perspective")
        for each in call.keywords
        if each.arg == "name"
    )


def name_faults(name: str) -> list[str]:
    """Say what is wrong with what ``--perspectives`` names; nothing where it is known."""
    known = name in GROUPS or name in declared()
    return [] if known else [unknown("perspective", name, declared())]
