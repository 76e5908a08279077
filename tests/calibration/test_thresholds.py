"""Temperatures and thresholds of several labels, also without an optimum."""

from __future__ import annotations

import numpy as np
import pytest

from temper.calibration.thresholds import choose_thresholds, label_temperatures
from temper.errors import DataError
from temper.functional.calibration import fit_temperature


def fitted(applies: np.ndarray, logits: np.ndarray) -> float:
    both = np.column_stack([np.zeros(logits.size), logits.ravel()])
    return fit_temperature(applies.ravel(), both).value


def test_labels_with_few_rows_or_no_optimum_use_the_common_temperature() -> None:
    draws = np.random.default_rng(0)
    logits = draws.normal(size=(60, 4)) * 4
    applies = (draws.random((60, 4)) < 1 / (1 + np.exp(-logits / 2))).astype(float)
    applies[:, 1] = logits[:, 1] > 0
    applies[:, 2] = np.arange(60) < 9
    applies[:, 3] = np.arange(60) >= 9
    result, notices = label_temperatures(applies, logits, ("a", "b", "c", "d"))
    common = fitted(applies, logits)
    assert result == (fitted(applies[:, 0], logits[:, 0]), common, common, common)
    (message,) = notices
    assert "'b', 'c', 'd'" in message
    assert f"{common:.4f}" in message
    # All rows are right: not even a common one is optimal.
    assert label_temperatures((logits > 0) * 1.0, logits, "abcd")[0] == (1.0,) * 4


def test_a_label_without_a_threshold_keeps_0_5_and_is_reported() -> None:
    chances = np.linspace(0.1, 0.9, 9)
    applies = np.column_stack([chances > 0.35, np.zeros(9)]).astype(float)
    both = np.column_stack([chances, chances])
    result, notices = choose_thresholds(applies, both, ("a", "b"), rule="f1")
    assert result == (pytest.approx(0.35), 0.5)
    (message,) = notices
    assert "'b'" in message
    with pytest.raises(DataError, match="no row, or to all rows"):
        choose_thresholds(applies[:, 1:], both[:, 1:], ("b",), rule="f1")
