"""Schedules against their closed forms in double precision, and what they refuse."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from temper.functional.schedules import (
    Constant,
    Cosine,
    Linear,
    ScalarOrSchedule,
    Schedule,
    WarmUp,
    schedule_of,
)

VALUES = st.floats(-10, 10)
SHARES = st.floats(0, 1)


@given(start=VALUES, end=VALUES, begin=st.floats(0, 0.4), until=st.floats(0.5, 1), share=SHARES)
def test_ramps_are_their_closed_forms(
    start: float, end: float, begin: float, until: float, share: float
) -> None:
    way = Fraction(share) - Fraction(begin)
    way = min(max(way / (Fraction(until) - Fraction(begin)), Fraction(0)), Fraction(1))
    exact = float(Fraction(start) + (Fraction(end) - Fraction(start)) * way)
    assert Linear(start, end, begin, until).at(share) == pytest.approx(exact, abs=1e-12)
    eased = start + (end - start) * math.sin(math.pi * float(way) / 2) ** 2
    assert Cosine(start, end, begin, until).at(share) == pytest.approx(eased, abs=1e-12)


@given(value=VALUES, share=st.floats(0.01, 1), done=SHARES)
def test_a_warm_up_rises_from_zero_and_stays(value: float, share: float, done: float) -> None:
    expected = value if done >= share else value * done / share
    assert WarmUp(value, share).at(done) == pytest.approx(expected, abs=1e-12)


@given(value=VALUES, share=SHARES)
def test_what_does_not_change_is_the_number_itself_bit_for_bit(value: float, share: float) -> None:
    assert Constant(value).at(share) == value
    assert Linear(value, value).at(share) == value


@pytest.mark.parametrize("schedule", [Constant(2.0), Linear(0, 1), Cosine(3, 1), WarmUp(0.5)])
def test_a_schedule_is_read_back_from_what_it_writes(schedule: Schedule) -> None:
    assert schedule_of(schedule.settings()) == schedule


def test_bounds_hold_for_all_values_and_truth_for_any() -> None:
    assert Linear(0.0, 1.0) >= 0
    assert not Linear(0.0, 1.0) > 0
    assert Linear(0.1, 0.2) <= Cosine(0.2, 0.4)
    assert not Linear(0.1, 0.3) <= Cosine(0.2, 0.4)
    assert WarmUp(1.0)
    assert not Linear(0.0, 0.0)
    assert Linear(-3.0, 1.0).peak == -3.0


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"schedule": "linaer", "start": 0, "end": 1}, "Did you mean 'linear'"),
        ({"schedule": "linear", "start": 0}, "the schedule 'linear' needs end"),
        (
            {"schedule": "warm_up", "value": 1, "shar": 0.1},
            "setting of the schedule 'warm_up' 'shar'. Did you mean 'share'",
        ),
        ({"schedule": "linear", "start": 0, "end": "1"}, "end must be a number, got '1'"),
        ({"schedule": "cosine", "start": 0, "end": math.inf}, "end must be finite"),
        ({"schedule": "linear", "start": 0, "end": 1, "begin": 1.0}, "0 <= begin < until <= 1"),
        ({"schedule": "linear", "start": 0, "end": 1, "until": 1.5}, "0 <= begin < until <= 1"),
        ({"schedule": "warm_up", "value": 1, "share": 0}, r"share of the run in \(0, 1\]"),
        ({"schedule": "warm_up", "value": 1, "share": 1.5}, r"share of the run in \(0, 1\]"),
        ({"start": 0, "end": 1}, "must be a number, or a table with a `schedule`"),
    ],
)
def test_a_wrong_schedule_says_what_is_wrong(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        schedule_of(table)


class Settings(BaseModel):
    weight: Annotated[ScalarOrSchedule, Field(ge=0, lt=4)] = 1.0


def test_a_setting_takes_a_number_a_table_or_a_schedule_and_writes_it_again() -> None:
    ramp = Linear(0.0, 2.0)
    table = {"schedule": "linear", "start": 0, "end": 2}
    assert Settings(weight="0.5").weight == 0.5
    for given_as in (ramp, table):
        settings = Settings(weight=given_as)
        assert settings.weight == ramp
        assert settings.model_dump()["weight"] == {**table, "begin": 0.0, "until": 1.0}
    assert Settings().model_dump() == {"weight": 1.0}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1.0, "greater than or equal to 0"),
        (Linear(0.0, 4.0), "less than 4"),
        ({"schedule": "linear", "start": -0.1, "end": 1.0}, "greater than or equal to 0"),
        ({"schedule": "step"}, "Unknown schedule 'step'"),
        (math.nan, "must be finite|greater than or equal"),
        ("x", "valid number"),
    ],
)
def test_the_bounds_of_a_setting_hold_for_every_value_of_a_schedule(
    value: object, message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        Settings(weight=value)


def test_a_setting_without_bounds_is_finite_all_the_same() -> None:
    reader = TypeAdapter(ScalarOrSchedule)
    assert reader.validate_python(3) == 3.0
    for value in (math.nan, -math.inf):
        with pytest.raises(ValidationError, match="must be finite"):
            reader.validate_python(value)


NUMBERS = st.sampled_from([-1.0, 0.0, 0.5, 1.0])
RAMPS = st.builds(Linear, NUMBERS, NUMBERS)


@given(RAMPS, RAMPS | NUMBERS)
def test_a_schedule_is_beyond_a_bound_where_all_its_values_are(
    schedule: Linear, bound: Linear | float
) -> None:
    mine = [schedule.start, schedule.end]
    theirs = [bound.start, bound.end] if isinstance(bound, Linear) else [bound]
    pairs = [(value, other) for value in mine for other in theirs]
    assert (schedule < bound) == all(value < other for value, other in pairs)
    assert (schedule <= bound) == all(value <= other for value, other in pairs)
    assert (schedule > bound) == all(value > other for value, other in pairs)
    assert (schedule >= bound) == all(value >= other for value, other in pairs)
    assert bool(schedule) == any(mine)
    assert f"{schedule:.3g}" == repr(schedule)


def test_two_schedules_are_compared_by_all_values_of_both() -> None:
    low, high, wide = Linear(0.0, 1.0), Cosine(2.0, 3.0), Linear(0.5, 2.5)
    assert low < high
    assert low <= high
    assert high > low
    assert high >= low
    assert not low < wide
    assert not wide <= high
    assert not high > wide
    assert not wide >= low
