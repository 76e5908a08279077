"""The recipes of text attacks.

Modules that load models are imported only when needed, because importing Transformers takes
seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from temper.data.perturbations import drawn_edits
from temper.data.words import is_stop_word
from temper.errors import ModelError
from temper.evaluation.predictor import Predictor, WordPredictor
from temper.evaluation.text_attack.contract import Ask, Recipe, RecipeName, TextAttackSettings
from temper.evaluation.text_attack.swaps import Gradients, WordSwaps, gradient_norms
from temper.models.pieces import in_case_of
from temper.seeding import derive_seed

if TYPE_CHECKING:
    from temper.models.masked import MaskedModel


CANDIDATES = 20
"""Number of words proposed for a position."""


def character_edits(asked: Sequence[Ask]) -> list[list[str]]:
    """Propose up to five random edits of a word, after DeepWordBug (Gao et al., 2018).

    Each has one typo or one homoglyph, drawn by row and word. Words are ranked by the change of the
    loss without them. Differs: the released code replaces words by an unknown token to rank them,
    which not every predictor has. The edits are those of `temper.data.perturbations`, which keep
    the first and last letter.
    """
    return [
        drawn_edits(
            ask.draft.word(ask.position),
            seed=derive_seed(ask.seed, ask.position.side, ask.position.word),
        )
        for ask in asked
    ]


CHARACTERS = Recipe("characters", character_edits)
"""The recipe that works with any predictor."""


def masked_words(model: MaskedModel, asked: Sequence[Ask]) -> list[list[str]]:
    """Propose the most likely words at a position according to a masked language model.

    After BERT-ATTACK (Li et al. 2020) and BAE-R (Garg & Ramakrishnan 2020). Words are ranked by the
    loss without them. Proposals fit the context but may change the meaning, which
    ``min_similarity`` limits. Differs from BERT-ATTACK: the replaced word is masked, as in BAE.
    Words of several tokens and stop words are not proposed.
    """
    from temper.models.masked import Blank

    blanks = []
    for ask in asked:
        side = ask.draft.sides[ask.position.side]
        start, end = side.span(ask.position.word)
        blanks.append(Blank(side.text[:start], side.text[end:], ask.draft.word(ask.position)))
    # Some of the most likely words are stop words.
    result = model.propose(blanks, count=3 * CANDIDATES)
    offered = []
    for blank, proposals in zip(blanks, result, strict=True):
        words = [in_case_of(proposal, blank.word) for proposal in proposals]
        kept = [word for word in words if not is_stop_word(word)]
        offered.append(list(dict.fromkeys(kept))[:CANDIDATES])
    return offered


def recipe(
    name: RecipeName, predictor: Predictor, settings: TextAttackSettings, *, batch_size: int
) -> Recipe:
    """Create a recipe by its name; loads its models onto the predictor's device."""
    if name == "swaps":
        assert isinstance(predictor, WordPredictor)
        gradients = Gradients(predictor, batch_size)
        return Recipe("swaps", WordSwaps(gradients).propose, partial(gradient_norms, gradients))
    if name == "characters":
        return CHARACTERS
    from temper.models.masked import MaskedModel

    assert settings.masked_model is not None
    device = str(getattr(predictor, "device", "cpu"))
    model = MaskedModel.load(settings.masked_model, device=device, batch_size=batch_size)
    return Recipe("masked", partial(masked_words, model))


def misfits(settings: TextAttackSettings) -> list[str]:
    """Return errors about the models that settings name, whatever the predictor."""
    result = []
    for setting in ("masked_model", "similarity_model"):
        name: str | None = getattr(settings, setting)
        if name is None:
            continue
        from temper.models.masked import MaskedModel
        from temper.models.sentence import SentenceEncoder

        model = MaskedModel if setting == "masked_model" else SentenceEncoder
        try:
            model.check(name)
        except ModelError as error:
            result.append(f"text_attack's `{setting}`: {error}")
    return result
