"""ECE of units of which a text has several: words, entities, tokens of a completion.

For each bin of confidence, a row stores the sum of its units' gaps: 1 if right, else 0, minus the
confidence. The ECE of any bootstrap resample of rows can be computed from these sums.
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
    """Sum the units' gaps by row and bin, [rows, BINS].

    ``owners`` is the row of each unit, ``right`` whether it is right, ``sure`` its confidence.
    """
    sums = np.zeros((rows, BINS))
    np.add.at(sums, (owners, bin_numbers(sure, bins=BINS)), right - sure)
    return sums


def binned_error(units: str, measured: Mapping[str, FloatArray]) -> Statistic:
    """Return the ECE of all units as a statistic of resampled rows.

    ``units`` names the column of ``measured`` with the number of units of each row.
    """
    gaps = np.stack([measured[name] for name in gap_columns(units)], axis=1)
    return Centered(
        lambda counts: divide(np.abs(counts @ gaps).sum(axis=-1), counts @ measured[units])
    )
