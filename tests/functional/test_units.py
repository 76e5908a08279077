"""Display of scores: hand-worked texts and properties of every unit."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.errors import SettingError
from temper.functional.units import (
    ABSENT,
    ANY_SIZE,
    HUNDREDTHS,
    PERCENT,
    PLAIN,
    Unit,
    check_margin,
)

MINUS = "\u2212"


@pytest.mark.parametrize(
    ("unit", "value", "signed", "written"),
    [
        (PERCENT, 0.87654, False, "87.7"),
        (PERCENT, 0.5, True, "+50.0"),
        (HUNDREDTHS, -0.125, False, f"{MINUS}12.5"),
        (PLAIN, 0.69312, False, "0.6931"),
        (PLAIN, -2.0, True, f"{MINUS}2.0000"),
        (ANY_SIZE, 12345.0, False, "1.23e+04"),
        (ANY_SIZE, 0.00123456, True, "+0.00123"),
        (ANY_SIZE, -3.0, False, f"{MINUS}3"),
        (PERCENT, None, True, ABSENT),
    ],
)
def test_numbers_are_written_as_expected(
    unit: Unit, value: float | None, signed: bool, written: str
) -> None:
    assert unit.text(value, signed=signed) == written


@pytest.mark.parametrize("unit", [PERCENT, HUNDREDTHS, PLAIN, ANY_SIZE])
def test_zero_has_no_negative_sign(unit: Unit) -> None:
    assert unit.text(-0.0) == unit.text(0.0)
    assert PERCENT.text(-1e-9, signed=True) == PERCENT.text(0.0, signed=True) == "+0.0"


@given(st.sampled_from([PERCENT, HUNDREDTHS, PLAIN]), st.floats(-1, 1), st.booleans())
def test_written_numbers_round_trip_to_half_a_digit(unit: Unit, value: float, signed: bool) -> None:
    shown = unit.text(value, signed=signed)
    assert len(shown.partition(".")[2]) == unit.decimals
    read = float(shown.replace(MINUS, "-")) / unit.scale
    assert abs(read - value) <= 0.5000001 * 10.0**-unit.decimals / unit.scale
    # As long with either sign, so that points stand below one another.
    assert len(unit.text(abs(value), signed=True)) == len(unit.text(-abs(value))) or read == 0


def test_points_are_hundredths_of_scores_from_0_to_1_and_nothing_else_has_any() -> None:
    assert PERCENT.margin(0.5) == HUNDREDTHS.margin(0.5) == 0.005
    assert PLAIN.margin(0.5) is ANY_SIZE.margin(0.5) is None


@pytest.mark.parametrize("points", [-0.1, math.inf, math.nan])
def test_a_margin_is_a_finite_number_of_points(points: float) -> None:
    with pytest.raises(SettingError, match="finite number of points"):
        check_margin(points)
    assert check_margin(0.0) is check_margin(2.5) is None
