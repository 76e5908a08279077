"""The weighted median is the median of rows that are repeated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.functional.resampling import weighted_median

ROWS = st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(0, 4)), min_size=1, max_size=12)


@given(rows=ROWS)
def test_counts_are_repetitions(rows: list[tuple[float, int]]) -> None:
    values, counts = (list(side) for side in zip(*rows, strict=True))
    repeated = np.repeat(values, counts)
    found = weighted_median(values, [counts, counts])
    assert found.shape == (2,)
    if len(repeated):
        assert found == pytest.approx(np.median(repeated))
    else:
        assert np.isnan(found).all()


def test_one_count_each_is_the_plain_median() -> None:
    assert float(weighted_median([4.0, 1.0, 3.0, 2.0])) == 2.5


@pytest.mark.parametrize("values", [[], [1.0, np.nan], [np.inf]])
def test_no_rows_and_values_that_are_not_finite_have_none(values: list[float]) -> None:
    assert np.isnan(weighted_median(values))
