"""Worst case: accuracy if a row is right only if all of its label-preserving perturbations are.

Every validation row is predicted once under each perturbation (`temper.data.perturbations`). Its
worst case is right if the clean text and all perturbed ones are right. Each perturbation is drawn
once per row, so there may be a worse draw. If a perturbation does not change the input of the
model, such as lower case for an uncased tokenizer, the row keeps its clean prediction. A
perturbation that changes no row is skipped with a notice.

References:
    Liang et al., "Holistic Evaluation of Language Models", 2022, section 4.6 (robustness: the
    worst score of an instance over its transformations).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from pydantic import Field, field_validator

from temper.data.examples import Examples
from temper.data.perturbations import PERTURBATIONS, known_names, perturbed
from temper.display.cells import Comparison
from temper.display.charts import Figure, condition_bars
from temper.display.folders import Source
from temper.display.views import Heading
from temper.evaluation.blocks import block_of
from temper.evaluation.common_settings import PerspectiveSettings
from temper.evaluation.measurement import Measurement
from temper.evaluation.perspectives.registry import Perspective
from temper.evaluation.predictor import Predictor, TokenPredictor
from temper.evaluation.rows import Block, Condition, rows_at
from temper.evaluation.scoring import METRICS, ScoreEntry, Scoring, metric_entries
from temper.functional.intervals import Statistic
from temper.functional.proportions import Proportion, ProportionDifference
from temper.functional.scores import NO_ROWS, ScoreFacts

ALL = Condition("worst_case", "dev", "all")
"""Condition of the scores over the clean text and all perturbations."""
CONDITIONS = {"all": "under all perturbations"}


class WorstCaseSettings(PerspectiveSettings):
    """Settings of the worst case."""

    perturbations: tuple[str, ...] = Field(
        default=tuple(PERTURBATIONS),
        description="Changes that preserve the label, measured separately and jointly. "
        "`contractions`, `expansions` and `misspellings` are for English only.",
    )

    @field_validator("perturbations")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return known_names(names)


def rows(measurement: Measurement) -> Iterable[Block]:
    settings = measurement.settings
    perturbations = settings.section("worst_case", WorstCaseSettings).perturbations
    examples, index = measurement.attacked()
    clean = measurement.clean("dev", measurement.dev).take(index)
    original_inputs = _inputs(measurement.predictor, examples)
    changes, skipped = [], []
    for done, name in enumerate(perturbations):
        measurement.report(done, len(perturbations), f"worst case ({name})")
        whole = perturbed(examples, name, seed=settings.seed)
        inputs = zip(_inputs(measurement.predictor, whole), original_inputs, strict=True)
        indices = [row for row, (new, old) in enumerate(inputs) if new != old]
        if not indices:
            skipped.append(name)
            continue
        changes.append(f"{name} {len(indices) / len(examples):.1%}")
        original, changed = examples.select(indices), whole.select(indices)
        positions = np.array(indices, dtype=np.int64)
        measurement.texts.keep_changed(
            "worst_case", "dev", name, original, index[positions], changed
        )
        predictions = clean.replaced(positions, measurement.predict(changed))
        yield block_of(Condition("worst_case", "dev", name), examples, predictions, index=index)
    if changes:
        measurement.notices.append(
            f"Fraction of inputs changed, by perturbation: {', '.join(changes)}."
        )
    if skipped:
        measurement.notices.append(
            f"Skipped perturbations that change no input of this model: {', '.join(skipped)}."
        )


def _inputs(predictor: Predictor, examples: Examples) -> Sequence[object]:
    """Return the model's input for each row: token ids if it has a tokenizer, else texts."""
    if isinstance(predictor, TokenPredictor):
        return [item["input_ids"] for item in predictor.encoded(examples).items]
    return list(zip(examples.text, examples.text_pair or examples.text, strict=True))


def score(scoring: Scoring) -> list[ScoreEntry]:
    """Score each perturbation, and for classes also the worst case over all of them."""
    blocks = scoring.of("worst_case")
    entries = [entry for block in blocks for entry in metric_entries(scoring, block)]
    if blocks and blocks[0].classifies:
        clean = rows_at(scoring.clean, blocks[0]).correct
        worst = np.min([clean, *(block.correct for block in blocks)], axis=0)
        named: dict[str, Statistic] = {
            "worst_case_accuracy": Proportion(worst),
            "worst_case_drop": ProportionDifference(clean, worst),
        }
        entries += scoring.entries_of(ALL, named, rows=len(worst))
    return entries


def figures(source: Source, comparison: Comparison) -> list[Figure]:
    """Draw the accuracy under each perturbation, and under all of them."""
    rows = comparison.of("worst_case", comparison.metric)
    rows += comparison.of("worst_case", "worst_case_accuracy")
    caption = (
        "The metric under each perturbation that keeps the label, and the fraction of rows right "
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
    order=90,
    heading=Heading.ROBUSTNESS,
    explained="A text counts as right only if its prediction is right under every perturbation of "
    "a list, such as typos.",
    gain="is correct under every edit on {ours} of the texts ({compared})",
    leads="worst_case_accuracy",
    conditions=CONDITIONS,
    figures=figures,
    summary="fraction of texts that are predicted correctly under every one of several changes "
    "that preserve the label (HELM's robustness)",
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
