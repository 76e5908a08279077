"""Recipes: methods with tuned settings, and their cost.

``assets/recipes.toml`` defines them; docs/effect.md has the evidence.
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
    """A method, or a composition, with settings.

    Args:
        method: A method of ``temper list methods``, or several with ``+`` between.
        passes: Cost of a step in forward passes (plain fine-tuning: 3), times the number of
            members in a run.
        settings: Settings of the tables ``method`` and ``train``, nested.
        search: Dotted name of a setting that `temper tune` varies -> its lowest, first and highest
            value, all above 0; draws are log-uniform.
        default: Whether it is used if the user names no method or recipe.
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
    """Return a recipe by name; raise a `SettingError` if it is unknown."""
    if name not in recipes():
        raise SettingError(unknown("recipe", name, recipes()))
    return recipes()[name]


def default_recipe() -> Recipe:
    return next(recipe for recipe in recipes().values() if recipe.default)


def with_recipe(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the key ``recipe`` in nested settings by the settings of that recipe.

    Other keys override those of the recipe. Without a recipe or a method, the default recipe is
    used. Both together raise a `SettingError`. Values are not checked.

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
            f"{named!r}. Pass --recipe or --method; change settings of a recipe's method with "
            "--set method.KEY=VALUE."
        )
    if "recipe" not in tree and named is not None:
        return rest
    recipe = recipe_named(tree["recipe"]) if "recipe" in tree else default_recipe()
    settings: dict[str, Any] = {**recipe.settings}
    settings["method"] = {"name": recipe.method, **settings.get("method", {})}
    for table, values in settings.items():
        given = rest.get(table, {})
        # If it is not a table, the later check of settings raises.
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
