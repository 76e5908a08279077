"""Which rows of a set are attacked, and as what."""

from __future__ import annotations

from collections.abc import Sequence

from temper.data.examples import Examples
from temper.evaluation.text_attack.answers import Answer
from temper.evaluation.text_attack.contract import Draft, RecipeName
from temper.evaluation.text_attack.search import Row, draft_of, free_places
from temper.evaluation.text_attack.settings import TextAttackSettings
from temper.seeding import derive_seed


def drafts_of(examples: Examples, target: int | None = None) -> list[Draft]:
    """Split labelled rows into words.

    Args:
        examples: The rows, their labels those of the predictor.
        target: The class that is wanted, None for any wrong one.
    """
    pairs: Sequence[str | None] = examples.text_pair or [None] * len(examples)
    labels = examples.labels or []
    return [
        draft_of(row, int(label), text, pair, target)
        for row, label, text, pair in zip(examples.rows, labels, examples.text, pairs, strict=True)
    ]


def attacked(
    drafts: Sequence[Draft],
    before: Sequence[Answer],
    name: RecipeName,
    settings: TextAttackSettings,
    seed: int,
) -> dict[int, Row]:
    """Return the rows that the predictor answers rightly, by position: no others are attacked.

    Args:
        drafts: n unchanged rows.
        before: What the predictor says of them.
        name: The recipe.
        settings: With what may be changed.
        seed: Seed of the draws.
    """
    chosen = {}
    for number, (draft, answer) in enumerate(zip(drafts, before, strict=True)):
        if answer.source.prediction[answer.at] == draft.label:
            places, words = free_places(draft, settings)
            own = derive_seed(seed, "text_attack", name, draft.row)
            chosen[number] = Row(draft, answer, places, words, own)
    return chosen
