"""Calibration error of units of which a text has several: words, entities, tokens of a completion.

A row has, for each bin of confidence, the sum of right (1 or 0) less confidence over its units. So
the error of any resample of rows follows from the rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from temper.functional.calibration import bin_numbers
from temper.functional.conformal import BooleanArray
from temper.functional.intervals import Centered, Statistic
from temper.functional.resampling import FloatArray, IntegerArray, divide

BINS = 10


def gap_columns(units: str) -> tuple[str, ...]:
    return tuple(f"{units}_gap_{number}" for number in range(BINS))


def gaps_by_bin(
    owners: IntegerArray, right: BooleanArray, sure: FloatArray, *, rows: int
) -> FloatArray:
    """Sum right (1 or 0) less confidence over the units of each row and bin, [rows, BINS]."""
    sums = np.zeros((rows, BINS))
    np.add.at(sums, (owners, bin_numbers(sure, bins=BINS)), right - sure)
    return sums


def binned_error(units: str, measured: Mapping[str, FloatArray]) -> Statistic:
    """Return the calibration error of all units, which ``units`` counts by row."""
    gaps = np.stack([measured[name] for name in gap_columns(units)], axis=1)
    return Centered(
        lambda counts: divide(np.abs(counts @ gaps).sum(axis=-1), counts @ measured[units])
    )
