"""What is in a race: recipes with the settings of a trial, and what is judged beside them."""

from __future__ import annotations

from dataclasses import dataclass

from temper.app.alternatives import Alternative
from temper.methods.recipes import Recipe
from temper.study.plan import Column
from temper.training.assignments import Tree
from temper.training.passes import PLAIN as PASSES


@dataclass(frozen=True)
class Contender:
    """A recipe with the settings of one trial.

    Args:
        recipe: The recipe.
        settings: The settings of the column: tables ``method`` and ``train``.
        length: Steps over those of the base settings.
        value: Mean improvement over the reference on the dev folds.
        trial: Its number.
    """

    recipe: Recipe
    settings: Tree
    length: float = 1.0
    value: float | None = None
    trial: int = 0

    @property
    def cost(self) -> float:
        """What a training costs, a vanilla run being 1."""
        return self.recipe.passes / PASSES * self.length

    @property
    def column(self) -> Column:
        """The column of a comparison."""
        return Column(self.recipe.name, self.recipe.method, self.settings)


@dataclass(frozen=True)
class Field:
    """What is in a race.

    Args:
        recipes: Names of the recipes, plain fine-tuning first.
        seeds: How many seeds the final part has.
        alternatives: What is judged beside them.
    """

    recipes: tuple[str, ...]
    seeds: int
    alternatives: tuple[Alternative, ...] = ()

    def record(self) -> tuple[list[str], int, list[str]]:
        """Return it as the search keeps it."""
        return list(self.recipes), self.seeds, [each.name for each in self.alternatives]
