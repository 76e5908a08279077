"""One figure of a table: gain and cost of each method."""

from __future__ import annotations

from reproduction.table import ReproductionTable
from temper.display.charts import Bars, Figure, Look, Mark
from temper.errors import SettingError


def frontier(table: ReproductionTable) -> Figure:
    """Draw the difference of each method from the reference, the least expensive on top.

    Args:
        table: A table whose specification names the score of the gain (``frontier``).

    Returns:
        Horizontal bars, of the mean over the cases if there are several.

    Raises:
        SettingError: No method but the reference has the score and a cost.
    """
    lines = [line for line in table.lines if line.score == table.frontier]
    # The mean over the cases is last.
    lines = [line for line in lines if line.case == lines[-1].case and line.seeds]
    compared = [
        line for line in lines if line.to_reference is not None and line.column in table.costs
    ]
    if not compared:
        raise SettingError(f"{table.name} has no runs of a method except {table.reference}.")
    marks = {}
    for line in sorted(compared, key=lambda line: table.costs[line.column]):
        gain, unit = line.to_reference, line.unit
        assert gain is not None
        ends = None
        if gain.low is not None and gain.high is not None:
            ends = (gain.low * unit.scale, gain.high * unit.scale)
        label = f"{line.column}, {table.costs[line.column]:.1f} \u00d7"
        marks["gain", label] = Mark(
            gain.mean * unit.scale,
            unit.text(gain.mean, signed=True),
            "95% interval over the seeds" if ends else "no interval",
            f"{len(line.seeds)} seeds",
            ends,
        )
    what = f"{compared[0].label}: gain over {table.reference}, {compared[0].case}"
    caption = f"\u00d7: training cost, relative to {table.reference}."
    return Figure(what, caption, Bars(f"gain over {table.reference}", marks, {"gain": Look(1)}))
