"""Schedules: a scalar setting that changes over the run, by the share of it that is done.

Any setting of the type `ScalarOrSchedule` takes a number, a schedule, or a table that names one::

    weight = {schedule = "linear", start = 0.0, end = 1.0}
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Annotated, Any, ClassVar

from pydantic import PlainSerializer, ValidatorFunctionWrapHandler, WrapValidator

from temper.errors import unknown


@dataclass(frozen=True)
class Schedule(ABC):
    """A value for every share of the run; it lies between two extremes and is compared by them.

    A schedule is true where any of its values is not 0, and ``>= bound`` where all of them are. It
    cannot be calculated with: a step takes its value (`at`).
    """

    name: ClassVar[str]

    @abstractmethod
    def at(self, share: float) -> float:
        """Return the value at a share of the run.

        Args:
            share: Optimiser steps done over all steps, in [0, 1].
        """

    @property
    @abstractmethod
    def extremes(self) -> tuple[float, ...]:
        """The smallest and the largest value, in any order."""

    @property
    def peak(self) -> float:
        """The value that is farthest from 0."""
        return max(self.extremes, key=abs)

    def settings(self) -> dict[str, Any]:
        """Return it as plain values, as a file of settings has it."""
        return {"schedule": self.name, **asdict(self)}

    def __format__(self, specification: str) -> str:
        return repr(self)

    def __bool__(self) -> bool:
        return any(self.extremes)

    def __ge__(self, other: object) -> bool:
        return min(self.extremes) >= max(_values(other))

    def __gt__(self, other: object) -> bool:
        return min(self.extremes) > max(_values(other))

    def __le__(self, other: object) -> bool:
        return max(self.extremes) <= min(_values(other))

    def __lt__(self, other: object) -> bool:
        return max(self.extremes) < min(_values(other))

    def _check(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{field.name} must be a number, got {value!r}")
            if not math.isfinite(value):
                raise ValueError(f"{field.name} must be finite, got {value!r}")
            object.__setattr__(self, field.name, float(value))


@dataclass(frozen=True)
class Constant(Schedule):
    """The same value in every step: the number itself, bit for bit.

    Args:
        value: The value.
    """

    value: float

    name = "constant"

    def __post_init__(self) -> None:
        self._check()

    def at(self, share: float) -> float:
        """Return the value."""
        return self.value

    @property
    def extremes(self) -> tuple[float, ...]:
        """The value."""
        return (self.value,)


@dataclass(frozen=True)
class _Ramp(Schedule):
    start: float
    end: float
    begin: float = 0.0
    until: float = 1.0

    def __post_init__(self) -> None:
        self._check()
        if not 0 <= self.begin < self.until <= 1:
            raise ValueError(
                "begin and until must be shares of the run, 0 <= begin < until <= 1, got "
                f"begin={self.begin:g} and until={self.until:g}"
            )

    def at(self, share: float) -> float:
        """Return the value at a share of the run, in [0, 1]."""
        done = min(max((share - self.begin) / (self.until - self.begin), 0.0), 1.0)
        return self.start + (self.end - self.start) * self._progress(done)

    @abstractmethod
    def _progress(self, done: float) -> float:
        """Return the share of the way from start to end, 0 at 0 and 1 at 1."""

    @property
    def extremes(self) -> tuple[float, ...]:
        """Start and end."""
        return (self.start, self.end)


@dataclass(frozen=True)
class Linear(_Ramp):
    """Go from one value to another in a straight line.

    Args:
        start: The value up to ``begin``.
        end: The value from ``until`` on.
        begin: Share of the run at which it starts to change, in [0, until).
        until: Share of the run at which it is there, in (begin, 1].

    Example:
        >>> Linear(0.0, 2.0, until=0.5).at(0.25)
        1.0
    """

    name = "linear"

    def _progress(self, done: float) -> float:
        return done


@dataclass(frozen=True)
class Cosine(_Ramp):
    """Go from one value to another along half a cosine: slowly, fast, slowly.

    ``start + (end - start) * (1 - cos(pi * t)) / 2``, t from 0 at ``begin`` to 1 at ``until``.

    Args:
        start: The value up to ``begin``.
        end: The value from ``until`` on.
        begin: Share of the run at which it starts to change, in [0, until).
        until: Share of the run at which it is there, in (begin, 1].
    """

    name = "cosine"

    def _progress(self, done: float) -> float:
        return (1.0 - math.cos(math.pi * done)) / 2


@dataclass(frozen=True)
class WarmUp(Schedule):
    """Rise from 0 to a value in a straight line, then stay.

    Args:
        value: The value from ``share`` on.
        share: Share of the run that it takes, in (0, 1].
    """

    value: float
    share: float = 0.1

    name = "warm_up"

    def __post_init__(self) -> None:
        self._check()
        if not 0 < self.share <= 1:
            raise ValueError(f"share must be a share of the run in (0, 1], got {self.share:g}")

    def at(self, share: float) -> float:
        """Return the value at a share of the run, in [0, 1]."""
        return self.value * min(share / self.share, 1.0)

    @property
    def extremes(self) -> tuple[float, ...]:
        """0 and the value."""
        return (0.0, self.value)


SCHEDULES: dict[str, type[Schedule]] = {
    schedule.name: schedule for schedule in (Constant, Linear, Cosine, WarmUp)
}
"""The schedules, by the name that a table gives."""


def schedule_of(table: Mapping[str, Any]) -> Schedule:
    """Make a schedule from plain values.

    Args:
        table: ``schedule``, one of `SCHEDULES`, and its settings.

    Raises:
        ValueError: If there is no such schedule, or a setting of it is wrong.

    Example:
        >>> schedule_of({"schedule": "warm_up", "value": 0.1})
        WarmUp(value=0.1, share=0.1)
    """
    given = {str(name): value for name, value in table.items() if name != "schedule"}
    if "schedule" not in table:
        raise ValueError(f"must be a number, or a table with a `schedule` ({', '.join(SCHEDULES)})")
    name = table["schedule"]
    if name not in SCHEDULES:
        raise ValueError(unknown("schedule", str(name), SCHEDULES))
    known = {field.name: field for field in fields(SCHEDULES[name])}
    for key in given:
        if key not in known:
            raise ValueError(unknown(f"setting of the schedule {name!r}", key, known))
    missing = [key for key, field in known.items() if field.default is MISSING and key not in given]
    if missing:
        raise ValueError(f"the schedule {name!r} needs {' and '.join(missing)}")
    return SCHEDULES[name](**given)


def _values(other: object) -> tuple[float, ...]:
    return other.extremes if isinstance(other, Schedule) else (other,)  # type: ignore[return-value]


def _read(given: Any, as_number: ValidatorFunctionWrapHandler) -> Any:
    """Take a schedule wherever pydantic takes a number; its bounds hold for all values."""
    if isinstance(given, Schedule | Mapping):
        schedule = given if isinstance(given, Schedule) else schedule_of(given)
        for value in schedule.extremes:
            as_number(value)
        return schedule
    number = as_number(given)
    if not math.isfinite(number):
        raise ValueError("must be finite")
    return number


def _written(held: Any) -> Any:
    return held.settings() if isinstance(held, Schedule) else held


SCHEDULABLE = WrapValidator(_read)
"""Stands beside the type of a setting that may be a schedule."""
ScalarOrSchedule = Annotated[float, SCHEDULABLE, PlainSerializer(_written)]
"""A number, or a schedule of it.

A type checker sees a number, because a step is taken by settings whose schedules have their values
(`MethodConfig.at`): what a method builds never meets a schedule in its arithmetic.
"""
