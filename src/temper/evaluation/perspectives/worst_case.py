"""Worst case: right under all of a set of label-preserving perturbations, and under none.

Every dev row is answered once under each perturbation (`temper.data.perturbations`). Its worst case
is right where the clean text and all of the perturbed ones are. A perturbation is drawn once for
each row: of all its draws a worse one may exist. Texts that a perturbation leaves as they are keep
their clean answer and are not asked again.

References:
    Liang et al., "Holistic Evaluation of Language Models", 2022, section 4.6 (robustness: the
    worst score of an instance over its transformations).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from pydantic import field_validator

from temper.data.perturbations import known_names, perturbed
from temper.data.perturbations import names as perturbation_names
from temper.display.cells import Comparison
from temper.display.charts import condition_bars
from temper.display.drawing import Figure
from temper.display.folders import Source
from temper.display.views import Question
from temper.evaluation.measurement import Measurement, PerspectiveSettings, block_of
from temper.evaluation.perspectives.contract import Perspective
from temper.evaluation.rows import Block, Condition, rows_at
from temper.evaluation.scoring import METRICS, ScoreEntry, Scoring, metric_entries
from temper.functional.intervals import Statistic
from temper.functional.proportions import Share, ShareDifference
from temper.functional.scores import NO_ROWS, ScoreFacts

ALL = Condition("worst_case", "dev", "all")
"""The condition of the scores over all perturbations and the clean text."""
CONDITIONS = {"all": "under all perturbations"}


class WorstCaseSettings(PerspectiveSettings):
    """How texts are perturbed.

    Args:
        perturbations: Changes that keep a text's label, each measured and all of them together:
            names of `temper.data.perturbations`. ``contractions``, ``expansions`` and
            ``misspellings`` know English words only.
    """

    perturbations: tuple[str, ...] = perturbation_names()

    @field_validator("perturbations")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return known_names(names)


def rows(measurement: Measurement) -> Iterable[Block]:
    """Predict the dev rows under every perturbation."""
    settings = measurement.settings
    perturbations = settings.section("worst_case", WorstCaseSettings).perturbations
    examples, index = measurement.attacked()
    clean = measurement.clean("dev", measurement.dev).take(index)
    told = []
    for done, name in enumerate(perturbations):
        measurement.tell(done, len(perturbations), f"worst case ({name})")
        whole = perturbed(examples, name, seed=settings.seed)
        pairs = enumerate(zip(whole.rows, examples.rows, strict=True))
        places = [place for place, (new, old) in pairs if new != old]
        told.append(f"{name} {len(places) / len(examples):.1%}")
        original, changed = examples.select(places), whole.select(places)
        at = np.array(places, dtype=np.int64)
        measurement.texts.keep_changed("worst_case", "dev", name, original, index[at], changed)
        # The clean answers stand for the texts that are left as they are.
        answers = clean.replaced(at, measurement.predict(changed)) if places else clean
        yield block_of(Condition("worst_case", "dev", name), examples, answers, index=index)
    measurement.notices.append(f"Share of the texts that perturbations change: {', '.join(told)}.")


def score(scoring: Scoring) -> list[ScoreEntry]:
    """Score each perturbation, and of a classification what is right under all of them."""
    blocks = scoring.of("worst_case")
    entries = [entry for block in blocks for entry in metric_entries(scoring, block)]
    if blocks and blocks[0].classifies:
        clean = rows_at(scoring.clean, blocks[0]).correct
        worst = np.min([clean, *(block.correct for block in blocks)], axis=0)
        named: dict[str, Statistic] = {
            "worst_case_accuracy": Share(worst),
            "worst_case_drop": ShareDifference(clean, worst),
        }
        entries += scoring.entries_of(ALL, named, rows=len(worst))
    return entries


def figures(source: Source, comparison: Comparison) -> list[Figure]:
    """Draw the accuracy under each perturbation, and under all of them."""
    rows = comparison.of("worst_case", comparison.metric)
    rows += comparison.of("worst_case", "worst_case_accuracy")
    caption = (
        "The metric under each perturbation that keeps the label, and the share of rows right "
        "under all of them; right is better."
    )
    return condition_bars(
        comparison,
        rows,
        "Worst case",
        caption,
        names=CONDITIONS,
    )


WORST_CASE = Perspective(
    name="worst_case",
    title="Worst case",
    place=90,
    question=Question.HOLDS,
    explained="A text counts as right only where the answer stays right under every change of a "
    "list, such as typos.",
    gain="is right under every change of {ours} of 100 texts where {reference} is of {theirs}",
    leads="worst_case_accuracy",
    conditions=CONDITIONS,
    figures=figures,
    summary="right under all of a set of changes that keep the label (HELM's robustness)",
    scores=(
        ScoreFacts(
            "worst_case_accuracy",
            "Accuracy in the worst case",
            True,
            1.0,
            NO_ROWS,
            guessing="class",
        ),
        ScoreFacts("worst_case_drop", "Accuracy lost in the worst case", False, 0.0, NO_ROWS),
        *METRICS,
    ),
    rows=rows,
    score=score,
    settings=WorstCaseSettings,
    perturbs=True,
)
