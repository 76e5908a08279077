"""Computations are at least in single precision, and scores in double precision."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch

from temper.functional import (
    calibration,
    conformal,
    detectors,
    intervals,
    resampling,
    selective,
    shift,
)
from temper.functional.precision import at_least_single, bf16_notices, in_half_precision

CPU = torch.device("cpu")


def layers(rows: object) -> object:
    """Return rows as states of one layer, [n, 1, D]."""
    return np.asarray(rows)[:, None]


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_only_half_precision_is_converted_to_single(kind: torch.dtype) -> None:
    values = torch.tensor([1.5, -2.0], dtype=kind)
    wide = at_least_single(values)
    assert wide.dtype == (torch.float64 if kind == torch.float64 else torch.float32)
    assert wide.tolist() == [1.5, -2.0]


def test_an_enabled_half_precision_autocast_is_detected() -> None:
    assert in_half_precision(CPU) is False
    for kind in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=kind):
            assert in_half_precision(CPU) is True
            assert in_half_precision(torch.device("cuda")) is False
        with torch.autocast("cpu", dtype=kind, enabled=False):
            assert in_half_precision(CPU) is False


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_only_a_cpu_without_bf16_support_gives_a_notice(
    monkeypatch: pytest.MonkeyPatch, there: bool, known: bool
) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: there)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: known)
    notices = bf16_notices(CPU)
    assert len(notices) == (0 if there and known else 1)
    for text in notices:
        message = r"This processor has no bf16 .* as long in bf16 .* Leave the precision at fp32\."
        assert re.fullmatch(message, text)
    assert bf16_notices(torch.device("cuda")) == ()


LABELS = np.arange(40) % 4
LOGITS = (np.random.default_rng(0).normal(size=(40, 4)) * 3).astype(np.float32)
PROBABILITIES = calibration.probabilities_of(LOGITS).astype(np.float32)
SURE = PROBABILITIES.max(axis=1)
# 0.7 in fp32 is below 0.7, and 1 - 2^-24 is the largest number below 1.
EDGES = np.array([0.7, 0.3, 1 - 2.0**-24, 0.1], dtype=np.float32)


@pytest.mark.parametrize(
    ("score", "values"),
    [
        (calibration.probabilities_of, LOGITS),
        (calibration.log_probabilities, PROBABILITIES),
        (lambda z: calibration.negative_log_likelihood(LABELS, z), LOGITS),
        (lambda z: calibration.fit_temperature(LABELS, z).value, LOGITS),
        (lambda z: calibration.scaled(z, 0.3), LOGITS),
        (lambda p: calibration.brier_of_rows(LABELS, p), PROBABILITIES),
        (lambda p: calibration.bin_numbers(p, bins=10), EDGES),
        (lambda p: calibration.expected_calibration_error(LABELS == 0, p, bins=7), SURE),
        (lambda p: calibration.adaptive_calibration_error(LABELS == 0, p, bins=7), SURE),
        (lambda p: calibration.classwise_calibration_error(LABELS, p), PROBABILITIES),
        (lambda p: calibration.reliability(LABELS == 0, p, bins=7).confidence[3:], SURE),
        (lambda p: conformal.at_labels(p, LABELS), PROBABILITIES),
        (conformal.lac_scores, PROBABILITIES),
        (detectors.energy, LOGITS),
        (detectors.max_softmax, PROBABILITIES),
        (detectors.max_logit, LOGITS),
        (detectors.shrunk_covariance, LOGITS),
        (lambda z: detectors.Mahalanobis.of(layers(z)).score(layers(z)), LOGITS),
        (lambda p: selective.area_under_risk(LABELS == 0, p), SURE),
        (resampling.weighted_median, SURE),
        (intervals.standard_error, SURE),
        (lambda z: shift.mmd_test(z[:30], z[30:], seed=0).statistic, LOGITS),
    ],
)
def test_single_precision_is_scored_like_the_equal_doubles(
    score: Callable[[np.ndarray], object], values: np.ndarray
) -> None:
    result, wanted = np.asarray(score(values)), np.asarray(score(values.astype(np.float64)))
    assert result.dtype == wanted.dtype
    np.testing.assert_array_equal(result, wanted)
    np.testing.assert_array_equal(np.asarray(score(values.astype(float).tolist())), wanted)


def test_conformal_scores_accept_labels_of_a_single_class() -> None:
    scores = np.array([[0.1, 0.4], [0.3, 0.2]])
    assert conformal.at_labels(scores, [1, 1]).tolist() == [0.4, 0.2]
