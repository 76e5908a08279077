"""All recipes, and the similarity that may bound them: a new recipe is a file and a line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from temper.errors import SettingError
from temper.evaluation.predictor import Predictor
from temper.evaluation.text_attack.characters import characters
from temper.evaluation.text_attack.contract import Recipe, RecipeName, Similarity
from temper.evaluation.text_attack.settings import TextAttackSettings


def _no_faults(predictor: Predictor, settings: TextAttackSettings) -> list[str]:
    return []


@dataclass(frozen=True)
class RecipeEntry:
    """How a recipe is made.

    Args:
        build: From the predictor, the settings and the rows of a forward pass; it may load models.
        faults: What keeps it from working, in sentences that say what to do; asked before any work.
    """

    build: Callable[[Predictor, TextAttackSettings, int], Recipe]
    faults: Callable[[Predictor, TextAttackSettings], list[str]] = _no_faults


RECIPES: dict[RecipeName, RecipeEntry] = {
    "characters": RecipeEntry(lambda predictor, settings, batch_size: characters()),
}


def faults(predictor: Predictor, settings: TextAttackSettings) -> list[str]:
    """Say what keeps the recipes that were asked for from working.

    Args:
        predictor: Who is attacked.
        settings: How.
    """
    lacking = [
        f"text_attack has no recipe {name!r}. Choose of {sorted(RECIPES)}."
        for name in settings.recipes
        if name not in RECIPES
    ]
    known = [RECIPES[name] for name in settings.recipes if name in RECIPES]
    return lacking + [fault for entry in known for fault in entry.faults(predictor, settings)]


def similarity(settings: TextAttackSettings, *, batch_size: int) -> Similarity | None:
    """Load the sentence encoder that the settings name, None where they name none.

    Args:
        settings: With ``similarity_model``.
        batch_size: Texts of a forward pass.

    Raises:
        SettingError: It cannot be had.
    """
    if settings.similarity_model is None:
        return None
    raise SettingError(
        f"`similarity_model` cannot be read yet, got {settings.similarity_model!r}. Leave it and "
        "`min_similarity` out."
    )
