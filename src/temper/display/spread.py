"""How sure a drawn number is: the ends of its line, and the same in words."""

from __future__ import annotations

from collections.abc import Iterable

from temper.display.cells import Cell
from temper.display.wording import plural
from temper.functional.units import ABSENT, Unit


def ends(cell: Cell) -> tuple[float, float] | None:
    """Return the ends of a cell's line as stored, None where nothing is known.

    Args:
        cell: A score of a column.

    Returns:
        The interval of one seed over examples, else a standard deviation over seeds to either side.
    """
    if cell.mean is None:
        return None
    if cell.low is not None and cell.high is not None:
        return cell.low, cell.high
    if cell.standard_deviation is not None:
        return cell.mean - cell.standard_deviation, cell.mean + cell.standard_deviation
    return None


def doubt(cell: Cell, unit: Unit) -> str:
    """Write a cell's interval, else its standard deviation over seeds, else a dash.

    Args:
        cell: A score of a column.
        unit: How it is shown.
    """
    if cell.low is not None and cell.high is not None:
        return f"[{unit.text(cell.low)}, {unit.text(cell.high)}]"
    if cell.standard_deviation is None:
        return ABSENT
    return f"\u00b1 {unit.text(cell.standard_deviation)}"


def count(cell: Cell) -> str:
    """Write how many seeds and examples are behind a cell."""
    examples = " or ".join(str(number) for number in cell.examples) or "not recorded"
    return f"{plural(len(cell.seeds), 'seed')}, {examples}"


def lines_are(cells: Iterable[Cell]) -> str:
    """Say what the lines of a figure's cells are, as a sentence; empty without any.

    Args:
        cells: Everything that is drawn.
    """
    drawn = [cell for cell in cells if ends(cell) is not None]
    alone = any(cell.low is not None for cell in drawn)
    several = any(cell.low is None for cell in drawn)
    if several and alone:
        return (
            "Lines are one standard deviation over seeds, of a column with one seed its 95 % "
            "interval over examples."
        )
    if several:
        return "Lines are one standard deviation over seeds."
    return "Lines are 95 % intervals over examples." if alone else ""
