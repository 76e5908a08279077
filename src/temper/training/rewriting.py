"""Change training rows by a model: words drawn from a masked language model.

References:
    Kobayashi, "Contextual Augmentation", NAACL 2018: words drawn from a language model's
    distribution at their place. Differs: the model is a masked one and does not see the label; the
    share of words is BERT's (Devlin et al. 2019), as in SSMBA (Ng et al. 2020).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from temper.data.augmentation import Rewriter
from temper.data.examples import Examples
from temper.data.settings import MASKED, AugmentationSettings
from temper.data.words import Words, is_stop_word
from temper.models.masked import Blank, MaskedModel, Proposal
from temper.models.pieces import in_case_of
from temper.seeding import derive_seed

MASKED_SHARE = 0.15
"""Share of a text's words that are replaced, rounded up: what BERT hides in its pre-training."""

CANDIDATES = 20
"""Likeliest words that one is drawn from, stop words among them not counted."""

# Rows whose places are asked about together: those of an epoch would be gigabytes of proposals.
_AT_A_TIME = 512


class MaskedReplacement:
    """Replaces words by draws from what a masked language model expects in their places.

    `MASKED_SHARE` of a text's words are replaced, stop words never; each is drawn from the model's
    distribution there, the other words unchanged. Of a pair both texts are changed. The model knows
    what fits and not what means the same, so that a label may come to be wrong.

    Args:
        model: The language model.
    """

    def __init__(self, model: MaskedModel) -> None:
        self._model = model

    def rewritten(self, examples: Examples, *, seed: int) -> Examples:
        """Change rows.

        Args:
            examples: n rows.
            seed: Of the draws, which are keyed by it and each row's hash.

        Raises:
            ModelError: The model's answer is not finite.
        """
        sides = (
            [examples.text] if examples.text_pair is None else [examples.text, examples.text_pair]
        )
        changed: list[list[str]] = [[] for _ in sides]
        for start in range(0, len(examples), _AT_A_TIME):
            keys = [
                derive_seed(seed, MASKED, row) for row in examples.rows[start : start + _AT_A_TIME]
            ]
            for side, texts in enumerate(sides):
                own = [derive_seed(key, side) for key in keys]
                changed[side] += self._changed(texts[start : start + _AT_A_TIME], own)
        pairs = changed[1] if len(changed) == 2 else None
        return replace(examples, text=changed[0], text_pair=pairs, rows=[])

    def _changed(self, texts: Sequence[str], seeds: Sequence[int]) -> list[str]:
        """Change some texts, each by its own seed."""
        split = list(map(Words.of, texts))
        places = [_places(words, seed) for words, seed in zip(split, seeds, strict=True)]
        blanks = []
        for words, some in zip(split, places, strict=True):
            for place in some:
                start, end = words.span(place)
                blanks.append(Blank(words.text[:start], words.text[end:], words.words[place]))
        if not blanks:
            return list(texts)
        # Some of the likeliest are stop words.
        proposals = iter(self._model.propose(blanks, count=3 * CANDIDATES))
        for at, (some, seed) in enumerate(zip(places, seeds, strict=True)):
            for place in some:
                word = split[at].words[place]
                drawn = draw_word(next(proposals), derive_seed(seed, "word", place))
                if drawn is not None:
                    split[at] = split[at].replaced(place, in_case_of(drawn, word))
        return [words.text for words in split]


def draw_word(proposals: Sequence[Proposal], seed: int) -> str | None:
    """Draw a word by the probabilities of the likeliest, stop words left out.

    Args:
        proposals: Words, the likeliest first.
        seed: Of the draw.

    Returns:
        The word, None where there is none.
    """
    kept = [each for each in proposals if not is_stop_word(each.word)][:CANDIDATES]
    # A seed is uniform in [0, 2^63).
    left = seed / 2.0**63 * sum(each.probability for each in kept)
    for each in kept:
        left -= each.probability
        if left < 0:
            return each.word
    return kept[-1].word if kept else None


def rewriters_of(settings: AugmentationSettings, *, device: str) -> dict[str, Rewriter]:
    """Load the models that change rows, by the names of the changes.

    Args:
        settings: With ``augment`` and the model that it needs.
        device: Device of the masked language model.

    Raises:
        ModelError: The model cannot be loaded, or cannot propose words.
    """
    if MASKED not in settings.augment:
        return {}
    assert settings.augment_masked_model is not None
    return {
        MASKED: MaskedReplacement(MaskedModel.load(settings.augment_masked_model, device=device))
    }


def _places(words: Words, seed: int) -> list[int]:
    """Draw the places of the words to replace, ascending."""
    free = [place for place, word in enumerate(words.words) if not is_stop_word(word)]
    free.sort(key=lambda place: derive_seed(seed, "place", place))
    return sorted(free[: math.ceil(MASKED_SHARE * len(words))])
