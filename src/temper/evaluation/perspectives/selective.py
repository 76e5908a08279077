"""Selective prediction: how often is a model wrong if it predicts only when it is confident?

The unperturbed rows of dev, shift and adversarial sets are ordered by the probability of the
predicted class or answer (`temper.functional.selective`). The scores are error rates on the most
confident rows, as with a confidence threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from temper.display.cells import Comparison, Row
from temper.display.charts import Axis, Curve, Figure, Lines, Point, style
from temper.display.folders import Source
from temper.display.views import Heading
from temper.evaluation.perspectives.calibration import confidences
from temper.evaluation.perspectives.registry import LABELED, ONE_PREDICTION, Perspective
from temper.evaluation.scoring import ScoreEntry, Scoring
from temper.functional.resampling import FloatArray
from temper.functional.scores import NO_ROWS, ScoreFacts
from temper.functional.selective import (
    area_under_risk,
    excess_area,
    risk_at_coverage,
    risk_curve,
)

SCORES = (
    ScoreFacts("aurc", "AURC", False, 0.0, NO_ROWS, measure=area_under_risk),
    ScoreFacts("excess_aurc", "E-AURC", False, 0.0, NO_ROWS, measure=excess_area),
    *(
        ScoreFacts(
            f"risk_{percent}", f"Risk at {percent}% coverage", False, 0.0, NO_ROWS,
            measure=partial(risk_at_coverage, coverage=percent / 100),
        )
        for percent in (80, 90, 95)
    ),
)  # fmt: skip
CORNERS = 100
"""Maximum number of points of a drawn curve."""


def score(scoring: Scoring) -> list[ScoreEntry]:
    entries = []
    for block in scoring.of(*LABELED):
        condition = replace(block.condition, perspective="selective")
        if not block.has_confidence:
            reason = "a regression has no confidence"
            entries.append(scoring.undefined(condition, "aurc", reason=reason, rows=len(block)))
            continue
        wrong, sure = 1.0 - block.correct, block.confidence
        statistics = {facts.name: facts.statistic(wrong, sure) for facts in SCORES}
        entries += scoring.entries_of(condition, statistics, rows=len(block))
    return entries


def on_dev(rows: Sequence[Row]) -> list[Row]:
    """Choose the rows of dev, which is the first set."""
    return list(rows[:1])


def in_words(comparison: Comparison) -> str:
    """Describe the error rate of the most confident predictions on dev and on the worst set."""
    risks = {
        percent: {row.key.set: row for row in comparison.of("selective", f"risk_{percent}")}
        for percent in (80, 95)
    }

    def say(column: str) -> str:
        means = {
            name: mean
            for name, row in risks[80].items()
            if (mean := row.cells[column].mean) is not None
        }
        if "dev" not in means:
            return ""
        indices = dict.fromkeys(("dev", max(means, key=lambda name: means[name])))
        findings = [
            f"of {name} {' and '.join(rows[name].value_text(column) for rows in risks.values())}"
            for name in indices
        ]
        return f"Error on the most confident 80 and 95%: {', '.join(findings)}."

    return comparison.said(say)


def figures(source: Source, comparison: Comparison) -> list[Figure]:
    """Draw the error rate over the fraction of predicted rows, one figure per labeled set."""
    if not comparison.of("selective"):
        return []
    looks = style([column.name for column in source.columns], source.reference)
    curves: dict[str, list[Curve]] = {}
    for column, run in source.first_runs.items():
        for perspective in LABELED:
            for name, right, sure in confidences(run, perspective):
                points = _points(1.0 - right, sure)
                curve = Curve(column, points, looks[column], column=column, marked=False)
                curves.setdefault(name, []).append(curve)
    caption = (
        "Fraction of wrong predictions among the most confident texts. If the curve is low on the "
        "left, low confidence indicates mistakes; the right end is the error on all texts. "
        f"{source.drawn_seeds}"
    ).rstrip()
    return [
        Figure(
            f"Risk over coverage, {name}",
            caption,
            Lines(
                Axis("fraction of texts accepted", (0.0, 1.02)),
                Axis("wrong (%)"),
                tuple(drawn),
            ),
        )
        for name, drawn in curves.items()
    ]


def _points(wrong: FloatArray, sure: FloatArray) -> tuple[Point, ...]:
    """Return points of the curve from 5% of the rows on, because fewer rows are too noisy."""
    curve = risk_curve(wrong, sure)
    kept = np.flatnonzero(curve.coverages >= 0.05)
    chosen = kept[np.linspace(0, len(kept) - 1, min(len(kept), CORNERS)).round().astype(int)]
    return tuple(map(Point, curve.coverages[chosen].tolist(), (100 * curve.risks[chosen]).tolist()))


SELECTIVE = Perspective(
    name="selective",
    title="Selective prediction",
    order=114,
    heading=Heading.CALIBRATION,
    explained="The risk is the fraction of wrong predictions if a model predicts only its most "
    "confident texts; the area under its curve (AURC) is the mean over all fractions of texts.",
    leads="aurc",
    sums_up=on_dev,
    says=in_words,
    figures=figures,
    judged=False,
    rescores=LABELED,
    kinds=(*ONE_PREDICTION, "spans"),
    summary="error rate on the 80, 90 and 95% most confident texts, AURC and E-AURC",
    scores=SCORES,
    score=score,
    left_out="adds five scores for each set",
)
