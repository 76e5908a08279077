"""The recipe ``masked``: words that a masked language model puts in a word's place.

After BERT-ATTACK (Li et al. 2020) and BAE-R (Garg & Ramakrishnan 2020): words are ranked by the
loss with a stand-in for each, and offered what the language model finds likely in the rest of the
text. It knows what fits, not what means the same: bound the change of meaning by
``min_similarity``. Differs: the word itself is hidden from the language model, as in BAE, and words
of several pieces are not offered.
"""

from __future__ import annotations

from collections.abc import Sequence

from temper.data.words import is_stop_word
from temper.evaluation.text_attack.contract import Ask, Recipe
from temper.models.masked import Blank, MaskedModel
from temper.models.pieces import in_case_of

CANDIDATES = 20
"""Words offered for a place."""


class MaskedWords:
    """Offers words of a masked language model, the likeliest first.

    Stop words are not offered: in a word's place they break the sentence.

    Args:
        model: The language model.
        candidates: Most words offered for a place, >= 1.
    """

    def __init__(self, model: MaskedModel, *, candidates: int = CANDIDATES) -> None:
        self._model = model
        self._candidates = candidates

    def propose(self, asked: Sequence[Ask]) -> list[list[str]]:
        """Offer words for places.

        Args:
            asked: Requests.
        """
        blanks = []
        for ask in asked:
            side = ask.draft.sides[ask.place.side]
            start, end = side.span(ask.place.word)
            blanks.append(Blank(side.text[:start], side.text[end:], ask.draft.word(ask.place)))
        # Some of the likeliest are stop words.
        found = self._model.propose(blanks, count=3 * self._candidates)
        offered = []
        for blank, proposals in zip(blanks, found, strict=True):
            words = [in_case_of(each.word, blank.word) for each in proposals]
            kept = [word for word in words if not is_stop_word(word)]
            offered.append(list(dict.fromkeys(kept))[: self._candidates])
        return offered


def masked(name: str, *, device: str = "cpu", batch_size: int = 32) -> Recipe:
    """Load a masked language model and return the recipe.

    Args:
        name: Folder or Hub id of the language model.
        device: Where to put it.
        batch_size: Texts of a forward pass; changes no result.

    Raises:
        ModelError: It cannot be loaded, or cannot propose words.
    """
    model = MaskedModel.load(name, device=device, batch_size=batch_size)
    return Recipe("masked", MaskedWords(model))
