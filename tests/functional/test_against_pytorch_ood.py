"""Detectors and their scores against what pytorch-ood publishes, written out row by row.

To install it is to install torchvision and another torch, so its formulas stand as float64 loops:
`EnergyBased` (-T log sum exp z / T), `MaxLogit` (-max z), `Mahalanobis`, `KNN(norm_features=True)`
and `OODMetrics` (anomalies positive) of version 0.4.0, documented at
https://pytorch-ood.readthedocs.io.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from temper.functional import detectors

Array = NDArray[np.float64]
LOGITS = st.integers(2, 5).flatmap(
    lambda classes: arrays(np.float64, (6, classes), elements=st.floats(-50, 50, width=32))
)
FLAGGED = st.lists(
    st.tuples(st.booleans(), st.sampled_from([-3.0, -1.0, 0.0, 0.5, 2.0]) | st.floats(-9, 9)),
    min_size=2,
    max_size=60,
)


def drawn(seed: int, rows: int, size: int) -> Array:
    return np.random.default_rng(seed).normal(size=(rows, size)) * np.arange(1, size + 1)


@given(LOGITS, st.floats(0.5, 4))
def test_energy_and_largest_logit(logits: Array, temperature: float) -> None:
    energies, largest = [], []
    for row in logits.tolist():
        top = max(row) / temperature
        total = math.fsum(math.exp(value / temperature - top) for value in row)
        energies.append(-temperature * (top + math.log(total)))
        largest.append(-max(row))
    found = detectors.energy(logits, temperature=temperature)
    assert found.tolist() == pytest.approx(energies, abs=1e-9)
    assert detectors.max_logit(logits).tolist() == largest


@given(st.integers(0, 1000), st.integers(2, 4), st.integers(2, 6))
def test_mahalanobis_without_shrinkage(seed: int, classes: int, size: int) -> None:
    known, asked = drawn(seed, 40, size), drawn(seed + 1, 9, size) + 1.0
    labels = np.arange(len(known)) % classes
    means = [known[labels == k].mean(axis=0) for k in range(classes)]
    scatter = np.zeros((size, size))
    for row, label in zip(known, labels, strict=True):
        scatter += np.outer(row - means[label], row - means[label])
    precision = np.linalg.pinv(scatter)
    # Theirs: minus the largest of -1/2 (x - m)' S^-1 (x - m), S summed and not averaged.
    wanted = [
        -max(-0.5 * float((row - mean) @ precision @ (row - mean)) for mean in means)
        for row in asked
    ]
    # Ours averages S, leaves out the half, and shrinks S (tests of its own): 2 n times theirs.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detectors, "shrunk_covariance", lambda rows: rows.T @ rows / len(rows))
        found = detectors.Mahalanobis.of(known, labels).score(asked)
    assert found.tolist() == pytest.approx([2 * len(known) * one for one in wanted], rel=1e-8)


@given(st.integers(0, 1000), st.integers(1, 12))
def test_nearest_neighbours(seed: int, k: int) -> None:
    known, asked = drawn(seed, 12, 3), drawn(seed + 1, 7, 3)

    def unit(row: Array) -> Array:
        return row / math.sqrt(math.fsum(value * value for value in row))

    wanted = [
        sorted(math.dist(unit(row).tolist(), unit(other).tolist()) for other in known)[k - 1]
        for row in asked
    ]
    assert detectors.Neighbours.of(known, k=k).score(asked).tolist() == pytest.approx(
        wanted, abs=1e-7
    )


@given(FLAGGED)
def test_auroc_is_the_share_of_pairs_in_order(rows: list[tuple[bool, float]]) -> None:
    anomalies = [value for flag, value in rows if flag]
    ordinary = [value for flag, value in rows if not flag]
    assume(anomalies and ordinary)
    pairs = [(one > other) + 0.5 * (one == other) for one in anomalies for other in ordinary]
    flags, values = zip(*rows, strict=True)
    assert float(detectors.auroc(flags, values)) == pytest.approx(sum(pairs) / len(pairs))


@given(FLAGGED)
def test_aupr_is_precision_over_each_step_of_recall(rows: list[tuple[bool, float]]) -> None:
    # Theirs joins the points by straight lines, which flatters; this is the sum of the steps.
    positives = sum(flag for flag, _ in rows)
    assume(0 < positives < len(rows))
    total, recall = 0.0, 0.0
    for threshold in sorted({value for _, value in rows}, reverse=True):
        caught = [flag for flag, value in rows if value >= threshold]
        step = sum(caught) / positives
        total += (step - recall) * sum(caught) / len(caught)
        recall = step
    flags, values = zip(*rows, strict=True)
    assert float(detectors.aupr(flags, values)) == pytest.approx(total)


@given(FLAGGED)
def test_fpr_at_the_first_threshold_that_catches_95_percent(
    rows: list[tuple[bool, float]],
) -> None:
    anomalies = [value for flag, value in rows if flag]
    ordinary = [value for flag, value in rows if not flag]
    assume(anomalies and ordinary)
    for threshold in sorted(anomalies, reverse=True):
        caught = sum(value >= threshold for value in anomalies)
        # 19 of 20 are 95 %, whatever 0.95 is in binary.
        if 100 * caught >= 95 * len(anomalies):
            break
    wanted = sum(value >= threshold for value in ordinary) / len(ordinary)
    flags, values = zip(*rows, strict=True)
    assert float(detectors.fpr95(flags, values)) == pytest.approx(wanted)
