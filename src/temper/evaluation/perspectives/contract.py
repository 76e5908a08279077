"""The contract of a perspective."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from temper.data.examples import Kind
from temper.display.views import View
from temper.errors import unknown
from temper.evaluation.measurement import CommonSettings, EvaluationData, Measurement
from temper.evaluation.predictor import (
    PerturbablePredictor,
    Predictor,
    StatePredictor,
    TokenPredictor,
)
from temper.evaluation.rows import Block
from temper.evaluation.scoring import ScoreEntry, Scoring
from temper.functional.scores import SCORES, ScoreFacts, add_scores

Need = Literal["answers", "tokens", "embeddings", "states"]

NEEDS: dict[Need, tuple[type, str]] = {
    "answers": (Predictor, "a predictor"),
    "tokens": (TokenPredictor, "a model whose token ids can be changed"),
    "embeddings": (PerturbablePredictor, "a model whose embeddings can be perturbed"),
    "states": (StatePredictor, "a model whose hidden states can be read"),
}
"""What a perspective may ask of a predictor: the contract that it must keep, and it in words."""


ONE_LABEL: tuple[Kind, ...] = ("classification", "regression")
"""Kinds of labels that a text has one of."""
ONE_ANSWER: tuple[Kind, ...] = (*ONE_LABEL, "choices")
"""Those, and choices, of which one is right and each has a probability."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Perspective(View):
    """One way of looking at a classifier: what it measures, how it scores, how a report shows it.

    Args:
        summary: What it says, in one line for lists.
        scores: Names of scores that are known (`temper.functional.scores.SCORES`), and facts of
            those that it adds.
        rows: From a measurement to blocks of rows; may be empty where others' rows are scored.
        score: From all rows of an evaluation to score entries; it sees rows and nothing else.
        needs: What it asks of a predictor, a key of `NEEDS`; a bare function offers answers only.
        rescores: Perspectives whose rows it scores, which then have to be measured.
        settings: Class of its own settings, a section of ``evaluate`` under its name; None where it
            has none.
        perturbs: Whether it looks at ``attack_rows`` of the dev rows.
        misfits: What of the settings fits neither data nor classes, or names a model that is none,
            whoever answers, in sentences; asked before any work, and before a model is trained.
        faults: What is wrong with a predictor that has what it needs, under given settings, in
            sentences; asked before any work.
        kinds: Kinds of labels that it reads.
        lacking: Why it cannot be measured on such data, of a predictor that has what it needs, in
            a sentence, empty where it can; asked before any work, and the perspective is skipped.
        left_out: Why it is measured only where it is named; empty where it always is.
        repeats: Whether measuring again gives the same rows.
        paired: Whether the rows of two models belong together one by one, so that a difference of
            theirs can be resampled.
    """

    summary: str
    scores: tuple[str | ScoreFacts, ...]
    rows: Callable[[Measurement], Iterable[Block]]
    score: Callable[[Scoring], list[ScoreEntry]]
    needs: Need = "answers"
    rescores: tuple[str, ...] = ()
    settings: type[BaseModel] | None = None
    perturbs: bool = False
    misfits: Callable[[EvaluationData, CommonSettings, Sequence[str] | None], list[str]] = (
        lambda data, settings, label_names: []
    )
    faults: Callable[[Predictor, EvaluationData, CommonSettings], list[str]] = (
        lambda predictor, data, settings: []
    )
    lacking: Callable[[Predictor, EvaluationData], str] = lambda predictor, data: ""
    kinds: tuple[Kind, ...] = ONE_LABEL
    left_out: str = ""
    repeats: bool = True
    paired: bool = True

    def __post_init__(self) -> None:
        add_scores(*(score for score in self.scores if isinstance(score, ScoreFacts)))
        lacking = [name for name in self.score_names if name not in SCORES]
        if lacking:
            raise ValueError(unknown("score", lacking[0], SCORES))

    @property
    def by_default(self) -> bool:
        """Whether it is measured where nobody says what is."""
        return not self.left_out

    @property
    def score_names(self) -> tuple[str, ...]:
        """Names of its scores."""
        return tuple(each if isinstance(each, str) else each.name for each in self.scores)

    @property
    def directions(self) -> dict[str, bool | None]:
        """Whether higher is better, by score; None where neither is."""
        return {name: SCORES[name].higher_is_better for name in self.score_names}
