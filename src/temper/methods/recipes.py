"""Recipes: methods with matching settings, their cost, and the evidence for them.

They are in ``assets/recipes.toml``; docs/effect.md explains how they are chosen.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from temper.errors import SettingError, unknown

Evidence = Literal[
    "candidate", "chosen on tuning benchmarks", "not confirmed", "confirmed", "baseline"
]
PLAIN = "plain"
FILE = Path(__file__).parent / "assets" / "recipes.toml"


@dataclass(frozen=True)
class Recipe:
    """A method, or several, with settings.

    Args:
        method: A method of ``temper list methods``, or several with ``+`` between.
        passes: Forward passes (F) that a step costs with these settings, times the trainings of a
            run that trains several times; plain fine-tuning's is 3.
        settings: Its settings of the tables ``method`` and ``train``, nested.
        search: Settings that `temper tune` varies, by their dotted names: the lowest value, the one
            that it begins with, and the highest, all above 0; it draws from their logarithms.
        default: Whether it is run if no method or recipe is named.
    """

    name: str
    summary: str
    method: str
    passes: float
    evidence: Evidence
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    search: Mapping[str, Sequence[float]] = field(default_factory=dict)
    default: bool = False


@cache
def recipes() -> dict[str, Recipe]:
    """Return all recipes by name, in the order of the file."""
    tables = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {name: Recipe(name, **table) for name, table in tables.items()}


def recipe_named(name: str) -> Recipe:
    """Return a recipe of ``temper list recipes``; raise a `SettingError` if it is unknown."""
    if name not in recipes():
        raise SettingError(unknown("recipe", name, recipes()))
    return recipes()[name]


def default_recipe() -> Recipe:
    return next(recipe for recipe in recipes().values() if recipe.default)


def with_recipe(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings with those of their ``recipe``, which all others override.

    The settings are not checked. Without a ``recipe`` and without the name of a method, the default
    recipe is taken. The method of the result has a name. A ``recipe`` next to a method's name is an
    error.

    Example:
        >>> with_recipe({"recipe": "plain", "train": {"epochs": 2.0}})
        {'train': {'epochs': 2.0}, 'method': {'name': 'plain'}}
    """
    rest: dict[str, Any] = {name: value for name, value in tree.items() if name != "recipe"}
    method = rest.get("method", {})
    named = method.get("name") if isinstance(method, Mapping) else method
    if "recipe" in tree and named is not None:
        raise SettingError(
            f"The recipe {tree['recipe']!r} sets the method, so it conflicts with the method "
            f"{named!r}. Give --recipe or --method; change settings of a recipe's method with "
            "--set method.KEY=VALUE."
        )
    if "recipe" not in tree and named is not None:
        return rest
    recipe = recipe_named(tree["recipe"]) if "recipe" in tree else default_recipe()
    settings: dict[str, Any] = {**recipe.settings}
    settings["method"] = {"name": recipe.method, **settings.get("method", {})}
    for table, values in settings.items():
        given = rest.get(table, {})
        # Values that are not tables are refused by the check of settings.
        rest[table] = {**values, **given} if isinstance(given, Mapping) else given
    return rest


def listing() -> list[dict[str, Any]]:
    return [
        {
            "name": f"{recipe.name} (default)" if recipe.default else recipe.name,
            "summary": recipe.summary,
            "method": recipe.method,
            "passes": f"{recipe.passes:g}F",
            "evidence": recipe.evidence,
            "settings": {table: dict(values) for table, values in recipe.settings.items()},
        }
        for recipe in recipes().values()
    ]
