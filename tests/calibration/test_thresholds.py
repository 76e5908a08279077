"""Temperatures and thresholds of several labels: what is kept where none is optimal."""

from __future__ import annotations

import numpy as np
import pytest

from temper.calibration.thresholds import choose_thresholds, label_temperatures
from temper.errors import DataError
from temper.functional.calibration import fit_temperature


def test_a_label_without_an_optimal_temperature_keeps_1_and_is_named() -> None:
    draws = np.random.default_rng(0)
    logits = draws.normal(size=(60, 3)) * 4
    applies = (draws.random((60, 3)) < 1 / (1 + np.exp(-logits / 2))).astype(float)
    applies[:, 1] = logits[:, 1] > 0
    applies[:, 2] = 0
    found, notices = label_temperatures(applies, logits, ("a", "b", "c"))
    both = np.column_stack([np.zeros(60), logits[:, 0]])
    assert found == (fit_temperature(applies[:, 0], both).value, 1.0, 1.0)
    optimal, rare = notices
    assert "'b', 'c'" in optimal
    assert "'c'" in rare
    assert "'a'" not in rare


def test_a_label_without_a_threshold_keeps_a_half_and_is_named() -> None:
    chances = np.linspace(0.1, 0.9, 9)
    applies = np.column_stack([chances > 0.35, np.zeros(9)]).astype(float)
    both = np.column_stack([chances, chances])
    found, notices = choose_thresholds(applies, both, ("a", "b"), rule="f1")
    assert found == (pytest.approx(0.35), 0.5)
    (said,) = notices
    assert "'b'" in said
    with pytest.raises(DataError, match="no row, or to each"):
        choose_thresholds(applies[:, 1:], both[:, 1:], ("b",), rule="f1")
