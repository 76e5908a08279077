"""What the files of this package register, read from their text without importing them.

A method's module imports torch, which takes seconds: too long to say that a name is mistyped. The
names, and what a table of methods shows, stand as plain strings in each file's ``@register(...)``.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal

from temper.errors import unknown
from temper.importing import calls_in

GROUP = "temper.methods"
"""Entry points by which other packages offer methods."""
HALVES: tuple[Literal["objective"], Literal["rule"]] = ("objective", "rule")


@dataclass(frozen=True)
class Declaration:
    """What a method says of itself where it is registered.

    Args:
        name: Name on the command line.
        summary: One line.
        cost: Forward passes a step, vanilla being 3F.
        memory: What it holds beside plain fine-tuning.
        paper: Source.
        claims: What only one method of a composition may hold: slots of the objective, then
            ``rule:`` and those of the update rule; empty where it claims nothing.
    """

    name: str
    summary: str
    cost: str
    memory: str
    paper: str
    claims: str


@cache
def declared() -> dict[str, Declaration]:
    """Return what the methods of this package say of themselves, by name, ``vanilla`` first.

    Example:
        >>> declared()["roast"].cost
        '7F + mask (+3F once: the first importance)'
    """
    found = {}
    for call in calls_in(Path(__file__).parent, "register"):
        said = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
        made = Declaration(ast.literal_eval(call.args[0]), **{"claims": "", **said})
        found[made.name] = made
    return {name: found[name] for name in in_order(found)}


def in_order(names: Iterable[str]) -> list[str]:
    """Sort names of methods, ``vanilla`` first."""
    return sorted(names, key=lambda name: (name != "vanilla", name))


def are_all_declared() -> bool:
    """Whether `declared` has all methods: no package offers others, and none were imported."""
    registry = sys.modules.get("temper.methods.registry")
    registered: frozenset[str] = frozenset() if registry is None else registry.registered()
    return registered <= set(declared()) and not entry_points(group=GROUP)


def known_names() -> list[str]:
    """Return the names of all methods; modules are imported only where other packages have some."""
    if are_all_declared():
        return list(declared())
    # Through the package's door: the registry stands on this file.
    from temper import methods

    return methods.names()


def is_composed(name: str) -> bool:
    """Tell whether a name stands for a composition.

    Example:
        >>> is_composed("r_drop + adv_weight"), is_composed("uegr.objective"), is_composed("uegr")
        (True, True, False)
    """
    return "+" in name or "." in name


def labels_of(name: str) -> list[tuple[str, str | None]]:
    """Split a composition's name into methods and the halves asked of them.

    Args:
        name: Methods with ``+`` between.

    Returns:
        (method, half), in order; the half is None for a whole method. Nothing is looked up.

    Example:
        >>> labels_of("uegr.objective + r_drop")
        [('uegr', 'objective'), ('r_drop', None)]
    """
    found: list[tuple[str, str | None]] = []
    for label in name.split("+"):
        method, dot, half = label.strip().partition(".")
        found.append((method.strip(), half.strip() if dot else None))
    return found


def name_faults(name: str) -> list[str]:
    """Say what is wrong with a method's name, whether composed or not; settings are not looked at.

    Args:
        name: A registered name, or a composition.

    Returns:
        One line per fault; none where every method and half is known.
    """
    found = []
    for method, half in labels_of(name):
        if not method:
            found.append(
                f"A method's name is missing in {name!r}. Write names with `+` between, for "
                "example 'r_drop + at'."
            )
        elif method not in declared() and method not in known_names():
            found.append(unknown("method", method, known_names()))
        if half is not None and half not in HALVES:
            found.append(unknown(f"half of {method}", half, HALVES))
    return list(dict.fromkeys(found))
