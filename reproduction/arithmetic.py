"""Whether a paper's printed numbers agree: with their averages, with its prose, with each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from reproduction.specification import AVERAGE, PAPERS, Entry, Printed, Specification
from temper.settings import read_toml

_FILE = Path(__file__).parent / "prose.toml"


class Cell(Entry):
    """Entries of a printed table; what is left out is all of them.

    Args:
        table: Name of a specification.
        model, column, task: Their names.
    """

    table: str
    model: str = ""
    column: str = ""
    task: str = ""

    def numbers(self, specifications: Mapping[str, Specification]) -> list[Printed]:
        """Return the printed numbers that it names."""
        wanted = self.model, self.column, self.task
        return [
            number
            for number in specifications[self.table].printed
            if all(
                not name or name == own for name, own in zip(wanted, number.place[1:], strict=True)
            )
        ]


class Statement(Entry):
    """A statement of the paper's text about a number in a table.

    Args:
        where: Section and table.
        says: The statement in our words.
        of: The number in the table.
        level: Its value according to the text.
        gain, over: Its gain over another column according to the text.
        best: Whether the text calls it the highest of all columns of its models and tasks.
        same_as: A number of another table for the same run.
    """

    where: str
    says: str
    of: Cell
    level: str = ""
    gain: str = ""
    over: str = ""
    best: bool = False
    same_as: Cell | None = None

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        if sum(map(bool, (self.level, self.gain, self.best, self.same_as))) != 1:
            raise ValueError("says one of level, gain, best and same_as")
        if bool(self.gain) != bool(self.over):
            raise ValueError("a gain is over a column")
        return self


class Statements(Entry):
    """The file of statements."""

    statement: tuple[Statement, ...] = Field(min_length=1)


@dataclass(frozen=True)
class Checked:
    """A statement of a paper about its numbers, and the numbers.

    Args:
        where: Paper and table, or section.
        says: The statement.
        numbers: The printed numbers.
        right: Whether they agree within rounding.
    """

    where: str
    says: str
    numbers: str
    right: bool


def check_averages(specification: Specification) -> Iterator[Checked]:
    """Compare every printed average with the mean of the printed numbers that it is over.

    A number printed with d decimals is within half a unit of its last digit, so mean and average
    may differ by ``0.5 * 10^-d`` each before it is an error.

    Args:
        specification: A table with printed numbers.

    Yields:
        Each average whose parts are all printed, right or wrong.
    """
    models = [each.name for each in specification.model]
    tasks = [each.name for each in specification.task]
    for number in specification.printed:
        if AVERAGE not in (number.model, number.task):
            continue
        parts = [
            part
            for model in (models if number.model == AVERAGE else [number.model])
            for task in (tasks if number.task == AVERAGE else [number.task])
            if (part := specification.number(number.score, model, number.column, task))
        ]
        mean = sum((Decimal(part.value) for part in parts), Decimal(0)) / len(parts)
        reach = sum(map(_half, parts), Decimal(0)) / len(parts) + _half(number)
        yield Checked(
            f"{PAPERS[specification.paper].partition(',')[0]}, {specification.place}",
            f"{_named(number)}: {number.value}",
            f"{mean:.4f}, the mean of {len(parts)}",
            abs(Decimal(number.value) - mean) <= reach,
        )


def check_prose(specifications: Mapping[str, Specification]) -> Iterator[Checked]:
    """Compare the statements of a paper's text with its tables.

    Args:
        specifications: The tables by name.

    Yields:
        Each statement about one of them, right or wrong.
    """
    for statement in Statements.model_validate(read_toml(_FILE)).statement:
        if statement.of.table in specifications:
            yield _check(statement, specifications)


def _check(statement: Statement, specifications: Mapping[str, Specification]) -> Checked:
    table = specifications[statement.of.table]
    numbers = statement.of.numbers(specifications)
    if not numbers:
        result = f"{table.place} has no such row"
        # The table may have the number under another name.
        twins = [_named(each) for each in table.printed if each.value == statement.level]
        if twins:
            result += f"; {statement.level} is {', '.join(twins)}"
        return Checked(statement.where, statement.says, result, right=False)
    if statement.best:
        return _check_best(statement, table, numbers)
    (number,) = numbers
    value = Decimal(number.value)
    if statement.same_as is not None:
        (other,) = statement.same_as.numbers(specifications)
        twin = specifications[statement.same_as.table]
        shown = f"{number.value} in {table.place}, {other.value} in {twin.place}"
        return Checked(statement.where, statement.says, shown, number.value == other.value)
    if statement.level:
        return Checked(
            statement.where, statement.says, number.value, value == Decimal(statement.level)
        )
    base = table.number(number.score, number.model, statement.over, number.task)
    if base is None:
        raise ValueError(f"{table.name} has no {statement.over} to compare with {_named(number)}")
    gain = value - Decimal(base.value)
    shown = f"{gain:+} over {statement.over} ({base.value} to {number.value})"
    reach = _half(number) + _half(base)
    return Checked(
        statement.where, statement.says, shown, abs(gain - Decimal(statement.gain)) <= reach
    )


def _check_best(statement: Statement, table: Specification, numbers: Sequence[Printed]) -> Checked:
    beaten = [
        f"{number.model}, {number.task}: {other.column} {other.value} is above {number.value}"
        for number in numbers
        for other in table.printed
        if (other.score, other.model, other.task) == (number.score, number.model, number.task)
        and Decimal(other.value) > Decimal(number.value)
    ]
    shown = "; ".join(beaten) or f"true of all {len(numbers)}"
    return Checked(statement.where, statement.says, shown, not beaten)


def _named(number: Printed) -> str:
    return f"{number.model}, {number.column}, {number.task}"


def _half(number: Printed) -> Decimal:
    """Return half a unit of the last printed digit."""
    digits = len(number.value.partition(".")[2])
    return Decimal(5).scaleb(-digits - 1)
