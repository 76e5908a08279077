"""All recipes, and the similarity that may bound them: a new recipe is a file and a line here.

What loads models is imported where it is asked for: Transformers takes seconds to import, and most
evaluations need neither a masked language model nor a sentence encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from temper.errors import ModelError
from temper.evaluation.predictor import Predictor
from temper.evaluation.text_attack.characters import characters
from temper.evaluation.text_attack.contract import OUTSIDE, Recipe, RecipeName, Similarity
from temper.evaluation.text_attack.search import Outcome, Row, attack
from temper.evaluation.text_attack.settings import TextAttackSettings
from temper.evaluation.text_attack.swaps import lacks_swaps, swaps
from temper.evaluation.text_attack.textattack import attack_with, textattack_faults


def _no_faults(predictor: Predictor) -> list[str]:
    return []


def _no_misfits(settings: TextAttackSettings) -> list[str]:
    return []


@dataclass(frozen=True)
class RecipeEntry:
    """How a recipe is made.

    Args:
        build: From the predictor, the settings and the rows of a forward pass; it may load models.
        faults: What keeps it from working on a predictor, in sentences that say what to do; asked
            before any work.
        misfits: The same of the settings alone, whoever is attacked.
    """

    build: Callable[[Predictor, TextAttackSettings, int], Recipe]
    faults: Callable[[Predictor], list[str]] = _no_faults
    misfits: Callable[[TextAttackSettings], list[str]] = _no_misfits


def _swaps_faults(predictor: Predictor) -> list[str]:
    reason = lacks_swaps(predictor)
    return [reason] if reason else []


def _masked(predictor: Predictor, settings: TextAttackSettings, batch_size: int) -> Recipe:
    from temper.evaluation.text_attack.masked import masked

    assert settings.masked_model is not None
    return masked(settings.masked_model, device=_device_of(predictor), batch_size=batch_size)


def _masked_misfits(settings: TextAttackSettings) -> list[str]:
    if settings.masked_model is None:
        return []
    from temper.models.masked import MaskedModel

    return _said("masked_model", settings.masked_model, MaskedModel.check)


RECIPES: dict[RecipeName, RecipeEntry] = {
    "characters": RecipeEntry(lambda predictor, settings, batch_size: characters()),
    "swaps": RecipeEntry(
        lambda predictor, settings, batch_size: swaps(predictor, batch_size=batch_size),
        _swaps_faults,
    ),
    "masked": RecipeEntry(_masked, misfits=_masked_misfits),
}


def faults(predictor: Predictor, settings: TextAttackSettings) -> list[str]:
    """Say what keeps the recipes that were asked for from working.

    Args:
        predictor: Who is attacked.
        settings: How.
    """
    return [fault for entry in _own(settings) for fault in entry.faults(predictor)]


def misfits(settings: TextAttackSettings) -> list[str]:
    """Say what keeps the recipes that were asked for from working, whoever is attacked.

    Args:
        settings: Which recipes, and the models that they need.
    """
    found = [fault for entry in _own(settings) for fault in entry.misfits(settings)]
    found += textattack_faults(settings)
    if settings.similarity_model is None:
        return found
    from temper.models.sentence import SentenceEncoder

    return found + _said("similarity_model", settings.similarity_model, SentenceEncoder.check)


def run(
    name: RecipeName,
    rows: Sequence[Row],
    predictor: Predictor,
    settings: TextAttackSettings,
    *,
    similarity: Similarity | None,
    batch_size: int,
    tell: Callable[[int, int], None] | None = None,
) -> list[Outcome]:
    """Attack rows by a recipe.

    Args:
        name: The recipe; `faults` finds nothing wrong with it.
        rows: What to attack.
        predictor: Whom.
        settings: Within which bounds.
        similarity: Who compares meanings, where ``min_similarity`` is set.
        batch_size: Texts of a forward pass; changes no result.
        tell: Called with rows done and rows in all.

    Returns:
        One outcome a row, in order.
    """
    if name.startswith(OUTSIDE):
        return attack_with(name, rows, predictor, settings, batch_size=batch_size, tell=tell)
    return attack(
        rows,
        predictor,
        RECIPES[name].build(predictor, settings, batch_size),
        settings,
        similarity=similarity,
        batch_size=batch_size,
        tell=tell,
    )


def similarity(
    predictor: Predictor, settings: TextAttackSettings, *, batch_size: int
) -> Similarity | None:
    """Load the sentence encoder that the settings name, None where they name none.

    Args:
        predictor: Who is attacked; the encoder is put where it lies.
        settings: With ``similarity_model``.
        batch_size: Texts of a forward pass; changes no result.

    Raises:
        ModelError: It cannot be loaded.
    """
    if settings.similarity_model is None:
        return None
    from temper.evaluation.text_attack.similarity import load_similarity

    device = _device_of(predictor)
    return load_similarity(settings.similarity_model, device=device, batch_size=batch_size)


def _own(settings: TextAttackSettings) -> list[RecipeEntry]:
    """Return the recipes that were asked for and are not TextAttack's."""
    return [RECIPES[name] for name in settings.recipes if name in RECIPES]


def _device_of(predictor: Predictor) -> str:
    return str(getattr(predictor, "device", "cpu"))


def _said(setting: str, name: str, check: Callable[[str], None]) -> list[str]:
    """Return what a check of a model says, with the setting that named it."""
    try:
        check(name)
    except ModelError as error:
        return [f"text_attack's `{setting}`: {error}"]
    return []
