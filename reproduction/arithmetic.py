"""Whether the averages that a paper prints are the means of the columns that it prints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from reproduction.entries import Printed
from reproduction.specification import (
    AVERAGE,
    PAPERS,
    Specification,
)


@dataclass(frozen=True)
class Average:
    """One printed average beside the mean of the numbers that it stands over.

    Args:
        name: Name of the specification.
        place: Paper and table.
        column, score: Which row of it.
        printed: The average as printed.
        mean: The mean of the printed numbers.
        reach: How far the two may lie apart by rounding alone.
        over: How many numbers.
    """

    name: str
    place: str
    column: str
    score: str
    printed: Decimal
    mean: Decimal
    reach: Decimal
    over: int

    @property
    def right(self) -> bool:
        """Whether rounding explains the difference."""
        return abs(self.printed - self.mean) <= self.reach


def check_averages(specifications: Iterable[Specification]) -> list[Average]:
    """Compare every printed average with the mean of the printed numbers of all cases.

    A number that is printed with d digits after the point stands for anything within half a unit
    of the last one, so mean and average may differ by ``0.5 * 10^-d`` each before it is an error.
    An average with a case that is not at hand cannot be checked and is left out.

    Args:
        specifications: Tables with printed numbers.

    Returns:
        One entry for each average that could be checked, right or wrong.
    """
    found = []
    for each in specifications:
        cases = [case.name for case in each.case]
        for number in each.printed:
            if number.case != AVERAGE:
                continue
            parts = [each.number(case, number.column, number.score) for case in cases]
            known = [part for part in parts if part is not None]
            if len(known) < len(parts):
                continue
            mean = sum((Decimal(part.value) for part in known), Decimal(0)) / len(known)
            reach = sum((_half(part) for part in known), Decimal(0)) / len(known) + _half(number)
            found.append(
                Average(
                    each.name,
                    f"{PAPERS[each.paper]}, {each.place}",
                    number.column,
                    number.score,
                    Decimal(number.value),
                    mean,
                    reach,
                    len(known),
                )
            )
    return found


def count_printed(specifications: Iterable[Specification]) -> int:
    """Count the printed numbers that are at hand."""
    return sum(len(each.printed) for each in specifications)


def _half(number: Printed) -> Decimal:
    """Return half a unit of the last printed digit."""
    digits = len(number.value.partition(".")[2])
    return Decimal(5).scaleb(-digits - 1)
