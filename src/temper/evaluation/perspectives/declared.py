"""The names of the perspectives, read from their files without importing torch."""

from __future__ import annotations

import ast
import sys
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from temper.errors import unknown
from temper.importing import calls_in

GROUPS = ("all", "default")
"""Words that stand for several perspectives."""
GROUP = "temper.perspectives"
"""Group of the entry points by which installed packages offer theirs."""
REGISTRY = "temper.evaluation.perspectives.registry"


@cache
def declared() -> tuple[str, ...]:
    """Return the names of all perspectives in the order of reports.

    Example:
        >>> "calibration" in declared()
        True
    """
    found = []
    for call in calls_in(Path(__file__).parent, "Perspective"):
        plain = {
            each.arg: ast.literal_eval(each.value)
            for each in call.keywords
            if each.arg in ("name", "place")
        }
        found.append((plain["place"], plain["name"]))
    return tuple(name for _, name in sorted(found))


def name_faults(name: str) -> list[str]:
    """Say what is wrong with what ``--perspectives`` names; nothing where it is known."""
    if entry_points(group=GROUP) or REGISTRY in sys.modules:
        # Others' are known by name only once they are imported, and are checked then.
        return []
    known = name in GROUPS or name in declared()
    return [] if known else [unknown("perspective", name, declared())]
