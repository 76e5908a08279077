"""Scores against torchmetrics on arbitrary rows; where it is wrong, hand-worked numbers decide.

It counts in float32 in part, hence the tolerances. It is a development dependency alone.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torchmetrics import functional as reference
from torchmetrics.functional import classification

from temper.functional import calibration, detectors, scores

CLASSES = 4
ANSWERS = st.lists(
    st.tuples(st.integers(0, CLASSES - 1), st.integers(0, CLASSES - 1)), min_size=1, max_size=40
)
TWO = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=40)
# Few distinct numbers, so that ties are common.
VALUES = st.lists(
    st.tuples(st.integers(-4, 4), st.sampled_from([-1.5, -1.0, 0.0, 0.25, 0.5, 3.0])),
    min_size=3,
    max_size=40,
)
# In [0, 1]: other scores torchmetrics takes for logits, and squashes them until they tie.
FLAGGED = st.lists(
    st.tuples(st.booleans(), st.sampled_from([0.1, 0.2, 0.3, 0.4, 0.9]) | st.floats(0, 1)),
    min_size=2,
    max_size=40,
)


def columns(rows: list[tuple[float, float]]) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = (list(side) for side in zip(*rows, strict=True))
    return torch.tensor(first), torch.tensor(second)


@given(ANSWERS)
def test_accuracy_and_macro_f1(rows: list[tuple[int, int]]) -> None:
    labels, predictions = columns(rows)
    wanted = classification.multiclass_accuracy(predictions, labels, CLASSES, average="micro")
    assert float(scores.accuracy(labels, predictions)) == pytest.approx(float(wanted))
    wanted = classification.multiclass_f1_score(predictions, labels, CLASSES, average="macro")
    assert float(scores.macro_f1(labels, predictions)) == pytest.approx(float(wanted), abs=1e-6)


@given(TWO)
def test_f1_of_two_classes(rows: list[tuple[int, int]]) -> None:
    labels, predictions = columns(rows)
    if not bool(labels.any() | predictions.any()):
        # torchmetrics says 0 of 0 / 0.
        assert np.isnan(scores.f1(labels, predictions))
        return
    wanted = classification.binary_f1_score(predictions, labels)
    assert float(scores.f1(labels, predictions)) == pytest.approx(float(wanted), abs=1e-6)


@given(ANSWERS)
def test_matthews_correlation(rows: list[tuple[int, int]]) -> None:
    labels, predictions = columns(rows)
    # Where the labels are one class it is 0 / 0; torchmetrics says 0, and of two classes others.
    assume(len(labels.unique()) > 1)
    wanted = classification.multiclass_matthews_corrcoef(predictions, labels, CLASSES)
    assert float(scores.matthews(labels, predictions)) == pytest.approx(float(wanted), abs=1e-5)


@given(VALUES)
def test_correlations(rows: list[tuple[int, float]]) -> None:
    targets, predictions = (side.double() for side in columns(rows))
    assume(len(targets.unique()) > 1 and len(predictions.unique()) > 1)
    wanted = reference.pearson_corrcoef(predictions, targets)
    assert float(scores.pearson(targets, predictions)) == pytest.approx(float(wanted), abs=1e-9)
    wanted = reference.spearman_corrcoef(predictions, targets)
    # Its ranks are float32, and it adds an epsilon to the spread.
    assert float(scores.spearman(targets, predictions)) == pytest.approx(float(wanted), abs=1e-5)


@given(FLAGGED)
def test_auroc_and_average_precision(rows: list[tuple[bool, float]]) -> None:
    flags, values = columns(rows)
    values = values.double()
    assume(len(flags.unique()) == 2)
    wanted = classification.binary_auroc(values, flags.long())
    assert float(detectors.auroc(flags, values)) == pytest.approx(float(wanted), abs=1e-5)
    wanted = classification.binary_average_precision(values, flags.long())
    assert float(detectors.aupr(flags, values)) == pytest.approx(float(wanted), abs=1e-5)


@given(FLAGGED)
def test_false_alarms_at_95_percent_are_the_specificity_there(
    rows: list[tuple[bool, float]],
) -> None:
    flags, values = columns(rows)
    assume(len(flags.unique()) == 2)
    # 0.95 as it is written: 19 of 20 in float32 is not below it.
    specificity, _ = classification.binary_specificity_at_sensitivity(
        values.double(), flags.long(), min_sensitivity=0.95 - 1e-6
    )
    assert float(detectors.fpr95(flags, values)) == pytest.approx(1 - float(specificity), abs=1e-6)


@given(st.lists(st.tuples(st.integers(0, 2), *[st.integers(1, 50)] * 3), min_size=1, max_size=30))
def test_brier_is_the_summed_squared_error_of_one_hot_labels(
    rows: list[tuple[int, int, int, int]],
) -> None:
    # torchmetrics has no Brier score; it has the mean over rows and classes.
    labels = torch.tensor([row[0] for row in rows])
    weights = torch.tensor([row[1:] for row in rows], dtype=torch.float64)
    probabilities = weights / weights.sum(dim=1, keepdim=True)
    target = torch.nn.functional.one_hot(labels, 3).double()
    wanted = 3 * reference.mean_squared_error(probabilities, target)
    assert float(calibration.brier(labels, probabilities)) == pytest.approx(float(wanted))


@st.composite
def sure(draw: st.DrawFn, bins: int) -> tuple[list[int], list[float]]:
    """Draw hits, and confidences that lie on no edge of the bins, nor within rounding of one."""
    inside = st.tuples(st.integers(0, 1), st.integers(0, bins - 1), st.floats(0.01, 0.99))
    rows = draw(st.lists(inside, min_size=1, max_size=60))
    return [hit for hit, _, _ in rows], [(number + part) / bins for _, number, part in rows]


@pytest.mark.parametrize("bins", [10, 15])
@given(data=st.data())
def test_calibration_error(bins: int, data: st.DataObject) -> None:
    hits, confidences = data.draw(sure(bins))
    wanted = classification.binary_calibration_error(
        torch.tensor(confidences, dtype=torch.float64), torch.tensor(hits), n_bins=bins, norm="l1"
    )
    found = calibration.expected_calibration_error(hits, confidences, bins=bins)
    assert float(found) == pytest.approx(float(wanted), abs=1e-5)


@pytest.mark.parametrize("bins", [10, 15])
@given(st.lists(st.tuples(st.integers(0, 2), *[st.integers(1, 50)] * 3), min_size=1, max_size=30))
def test_calibration_error_of_three_classes(
    bins: int, rows: list[tuple[int, int, int, int]]
) -> None:
    labels = torch.tensor([row[0] for row in rows])
    weights = torch.tensor([row[1:] for row in rows], dtype=torch.float64)
    probabilities = weights / weights.sum(dim=1, keepdim=True)
    confidences, predictions = probabilities.max(dim=1)
    off = (confidences * bins - (confidences * bins).round()).abs() > 1e-4
    assume(bool(off.all()))
    wanted = classification.multiclass_calibration_error(
        probabilities, labels, num_classes=3, n_bins=bins, norm="l1"
    )
    found = calibration.expected_calibration_error(predictions == labels, confidences, bins=bins)
    assert float(found) == pytest.approx(float(wanted), abs=1e-5)


def test_a_confidence_of_one_is_where_it_is_wrong() -> None:
    hits, confidences = [1, 1, 0, 1], [0.95, 0.95, 1.0, 1.0]
    # One bin [.9, 1]: |3 / 4 - (.95 + .95 + 1 + 1) / 4| = .225.
    found = calibration.expected_calibration_error(hits, confidences, bins=10)
    assert float(found) == pytest.approx(0.225)
    # A bin of its own for 1.0: 2 / 4 * |1 - .95| + 2 / 4 * |1 / 2 - 1| = .275.
    theirs = classification.binary_calibration_error(
        torch.tensor(confidences), torch.tensor(hits), n_bins=10, norm="l1"
    )
    assert float(theirs) == pytest.approx(0.275)


@pytest.mark.parametrize("bins", [10, 15])
def test_a_confidence_on_an_edge_opens_the_bin_above(bins: int) -> None:
    for number in range(1, bins):
        edge, below = number / bins, number / bins - 0.01
        # Two bins of a row each: |1 - edge| / 2 + |0 - below| / 2.
        found = calibration.expected_calibration_error([1, 0], [edge, below], bins=bins)
        assert float(found) == pytest.approx(((1 - edge) + below) / 2)


def test_an_edge_that_is_no_float32_is_where_it_is_wrong() -> None:
    # Its edges are float32, and .3 there lies above 3 / 10: the row falls into the bin below.
    theirs = classification.binary_calibration_error(
        torch.tensor([0.3, 0.29], dtype=torch.float64), torch.tensor([1, 0]), n_bins=10, norm="l1"
    )
    assert float(theirs) == pytest.approx(abs((1 - 0.3) + (0 - 0.29)) / 2)
    found = calibration.expected_calibration_error([1, 0], [0.3, 0.29], bins=10)
    assert float(found) == pytest.approx((0.7 + 0.29) / 2)
