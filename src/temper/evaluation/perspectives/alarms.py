"""Alarms: what fraction of texts does an OOD detector flag, at a threshold set in advance?

Each detector of `temper.evaluation.perspectives.anomaly` runs at a false alarm rate of 5%: its
threshold is a conformal quantile over validation rows. A hash of the text splits these into two
folds; rows of a fold, and of OOD sets, get the threshold of the other fold. So the false alarm rate
on in-distribution texts is at most 5% for any detector. Detectors differ in the fraction of OOD
texts that they flag.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from temper.display.cells import Comparison, Row
from temper.display.charts import Figure, labeled_bars
from temper.display.folders import Source
from temper.display.views import Heading
from temper.evaluation.perspectives.anomaly import CONDITIONS, values_of
from temper.evaluation.perspectives.coverage import rows_drawn, thresholds_of_dev
from temper.evaluation.perspectives.registry import Perspective
from temper.evaluation.rows import Block, Condition
from temper.evaluation.scoring import ScoreEntry, Scoring
from temper.functional.proportions import Proportion
from temper.functional.resampling import FloatArray, IntegerArray
from temper.functional.scores import NO_ROWS, ScoreFacts
from temper.functional.thresholds import Judged
from temper.functional.units import PERCENT

RATE = 0.05
"""Fraction of in-distribution texts that may raise an alarm."""
STATED = f"{100 * RATE:.0f}%"


def score(scoring: Scoring) -> list[ScoreEntry]:
    """Score each detector's alarms on dev and on each OOD set."""
    blocks = scoring.of("anomaly")
    ordinary = {block.condition.name: block for block in blocks if block.condition.set == "dev"}
    entries: list[ScoreEntry] = []
    for detector in dict.fromkeys(block.condition.name for block in blocks):
        dev = ordinary.get(detector, scoring.clean)
        sets = [
            block
            for block in blocks
            if block.condition.name == detector and block.condition.set != "dev"
        ]
        for block in (dev, *sets):
            condition = Condition("alarms", block.condition.set, detector)
            name = "false_alarms" if block is dev else "detections"
            try:
                statistic = _alarms(dev, block)
            except ValueError as error:
                message = str(error).partition(". ")[0]
                entry = scoring.undefined(condition, name, reason=message, rows=len(block))
            else:
                rows, drawn = len(block), rows_drawn(dev, block)
                entry = scoring.entry(condition, name, statistic=statistic, rows=rows, drawn=drawn)
            entries.append(entry)
    return entries


def _alarms(dev: Block, block: Block) -> Judged:
    """Return the fraction of a block's rows above the threshold from dev, as a statistic."""
    if dev.value is None and not dev.classifies:
        raise ValueError("a regression has no probabilities")
    thresholds = thresholds_of_dev(values_of(dev), dev, block, coverage=1 - RATE)
    values = values_of(block)

    def above(limit: float, rows: IntegerArray) -> FloatArray:
        return np.asarray(values[rows] > limit, dtype=np.float64)

    closed = Proportion(np.asarray(values > thresholds.of_rows(), dtype=np.float64))
    return Judged(thresholds, above, np.arange(len(block)), closed)


def by_detector(rows: Sequence[Row]) -> list[Row]:
    """Choose one row per detector: that of the first OOD set."""
    firsts: dict[str, Row] = {}
    for row in rows:
        firsts.setdefault(row.key.condition, row)
    return list(firsts.values())


def in_words(comparison: Comparison) -> str:
    """Describe the detectors with most and fewest detections, and their false alarm rates."""
    result = comparison.of("alarms", "detections")
    false = {row.key.condition: row for row in comparison.of("alarms", "false_alarms")}
    sets = list(dict.fromkeys(row.key.set for row in result))
    where = f"of {sets[0]}" if len(sets) == 1 else f"in the mean of {len(sets)} sets"

    def say(column: str) -> str:
        means: dict[str, float] = {}
        for detector in false:
            values = [row.cells[column].mean for row in result if row.key.condition == detector]
            known = [value for value in values if value is not None]
            if known:
                means[detector] = sum(known) / len(known)
        order = sorted(means, key=lambda detector: -means[detector])
        ends = {"Most OOD texts are detected": order[:1], "fewest": order[1:][-1:]}
        findings = [
            f"{which} {CONDITIONS[detector]}: {PERCENT.text(means[detector])}% {where}, "
            f"at {false[detector].value_text(column)} false alarms on dev"
            for which, named in ends.items()
            for detector in named
        ]
        return f"{'; '.join(findings)}." if findings else ""

    return comparison.said(say)


def figures(source: Source, comparison: Comparison) -> list[Figure]:
    """Draw the fraction of each set that raises an alarm, by detector."""
    result = comparison.of("alarms")
    return labeled_bars(
        comparison,
        {f"{row.key.set}, {CONDITIONS.get(row.key.condition, '')}": row for row in result},
        "Alarms",
        f"Fraction of the texts that raise an alarm: at most {STATED} on dev by construction; on "
        "OOD sets, higher is better.",
    )


ALARMS = Perspective(
    name="alarms",
    title="Alarms",
    order=122,
    heading=Heading.CALIBRATION,
    explained="Detections are the OOD texts that raise an alarm, with a threshold at which "
    f"in-distribution texts do so {STATED} of the time.",
    leads="detections",
    sums_up=by_detector,
    conditions=CONDITIONS,
    says=in_words,
    figures=figures,
    judged=False,
    rescores=("task", "anomaly"),
    summary="fraction of in-distribution and of OOD texts that each OOD detector flags, with its "
    "threshold set for 5% false alarms",
    scores=(
        ScoreFacts("detections", "OOD texts detected", True, 1.0, NO_ROWS),
        ScoreFacts("false_alarms", "False alarms", None, None, NO_ROWS),
    ),
    score=score,
    left_out="a point of the curves that `anomaly` has",
)
