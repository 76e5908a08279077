"""Whether the averages that a paper prints are the means of the columns that it prints."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import NamedTuple

from reproduction.specification import AVERAGE, PAPERS, Printed, Specification


class Average(NamedTuple):
    """One printed average beside the mean of the numbers that it stands over.

    Args:
        table: Paper and table.
        method, score: Which row of it.
        printed: The average as printed.
        mean: The mean of the printed numbers.
        numbers: How many there are.
        right: Whether rounding explains the difference.
    """

    table: str
    method: str
    score: str
    printed: str
    mean: Decimal
    numbers: int
    right: bool


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
    averages = []
    for each in specifications:
        for number in each.printed:
            parts = [each.number(case.name, number.column, number.score) for case in each.case]
            known = [part for part in parts if part is not None]
            if number.case != AVERAGE or len(known) < len(parts):
                continue
            mean = sum((Decimal(part.value) for part in known), Decimal(0)) / len(known)
            reach = sum((_half(part) for part in known), Decimal(0)) / len(known) + _half(number)
            averages.append(
                Average(
                    f"{PAPERS[each.paper]}, {each.place}",
                    number.column,
                    number.score,
                    number.value,
                    mean,
                    len(known),
                    abs(Decimal(number.value) - mean) <= reach,
                )
            )
    return averages


def _half(number: Printed) -> Decimal:
    """Return half a unit of the last printed digit."""
    digits = len(number.value.partition(".")[2])
    return Decimal(5).scaleb(-digits - 1)
