"""The recipe ``characters``: edits of single characters, after DeepWordBug (Gao et al., 2018).

Words are ranked by what leaving them out does to the loss, and offered with one typing error or
look-alike each, drawn by row and word. Differs: the released code scores words by an unknown token,
which not every predictor knows; and edits are those of `temper.data.edits`, which leave the ends of
a word in place.
"""

from __future__ import annotations

from collections.abc import Sequence

from temper.data.edits import drawn_edits
from temper.evaluation.text_attack.contract import Ask, Recipe
from temper.seeding import derive_seed


class CharacterEdits:
    """Offers one drawn edit of each kind."""

    def propose(self, asked: Sequence[Ask]) -> list[list[str]]:
        """Draw the edits.

        Args:
            asked: Requests; a draw is keyed by the row's seed and the word's place.

        Returns:
            Up to five words for each.
        """
        return [
            drawn_edits(
                ask.draft.word(ask.place),
                seed=derive_seed(ask.seed, ask.place.side, ask.place.word),
            )
            for ask in asked
        ]


def characters() -> Recipe:
    """Return the recipe; it works with any predictor."""
    return Recipe("characters", CharacterEdits())
