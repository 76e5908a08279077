"""Anomaly detection: does the model doubt texts that do not belong to its task?

The anomaly score of a text is ``-max softmax``. Dev rows are the ordinary ones, anomalies are
positive.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from temper.evaluation.alignment import Aligned
from temper.evaluation.measurement import Measurement
from temper.evaluation.perspectives.contract import Perspective
from temper.evaluation.rows import Block
from temper.evaluation.scoring import Entry, Scoring
from temper.functional.detection import aupr, auroc, fpr95
from temper.functional.intervals import Statistic

MEASURES = {"auroc": auroc, "aupr": aupr, "fpr95": fpr95}


def rows(measurement: Measurement) -> Iterable[Block]:
    """Predict every anomaly set; its labels, if it has any, belong to another task."""
    for name, examples in measurement.anomaly.items():
        yield measurement.clean_block("anomaly", name, Aligned(examples), labelled=False)


def score(scoring: Scoring) -> list[Entry]:
    """Score each anomaly set against the clean dev rows."""
    ordinary = scoring.clean
    entries = []
    for block in scoring.of("anomaly"):
        total = len(ordinary) + len(block)
        for name in MEASURES:
            if not block.classifies:
                reason = "a regression gives no probabilities"
                entries.append(scoring.undefined(block.condition, name, reason=reason, rows=total))
                continue
            statistic = _statistic(name, ordinary, block)
            entries.append(scoring.entry(block.condition, name, statistic=statistic, rows=total))
    return entries


def _statistic(name: str, ordinary: Block, anomalies: Block) -> Statistic:
    measure = MEASURES[name]
    flags = np.concatenate([np.zeros(len(ordinary)), np.ones(len(anomalies))])
    values = -np.concatenate(
        [ordinary.probabilities.max(axis=1), anomalies.probabilities.max(axis=1)]
    )
    return lambda counts: measure(flags, values, counts=counts)


ANOMALY = Perspective(
    name="anomaly",
    summary="Anomaly detection by -max softmax: AUROC, AUPR, FPR at 95 % TPR",
    scores=tuple(MEASURES),
    rows=rows,
    score=score,
)
