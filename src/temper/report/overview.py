"""The overview: a line for each column of a comparison, the leading scores of each perspective.

With many methods the whole table is wide; this is what a reader sees first.
"""

from __future__ import annotations

from dataclasses import dataclass

from temper.display.cells import NAMED, Comparison, Row
from temper.display.wording import escaped, pipe_table
from temper.functional.scores import SCORES
from temper.report.derived import AFTER, ALL_IN, SUMMARY, views
from temper.report.markdown import LEGEND, mark_of

SEEDS = 3
"""Seeds from which on a best mean is marked."""
_IMPROVEMENTS = {
    SUMMARY.name: "Relative improvement",
    AFTER.name: "Relative improvement, with post-hoc methods",
    ALL_IN.name: "Relative improvement with post-hoc methods, over the reference without",
}


@dataclass(frozen=True)
class Overview:
    """Hold the overview as strings.

    Args:
        header: Headings; the first is that of the methods.
        lines: One a method: its name and a text for each score.
        best: For each score the places of the lines with the best mean, from three seeds on.
        differing: For each score what a line's difference from the reference is marked by, if it is
            significant.
        reference: The column that the others are compared with.
    """

    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    best: tuple[frozenset[int], ...]
    differing: tuple[tuple[str, ...], ...] = ()
    reference: str = ""

    @property
    def turned(self) -> bool:
        """Whether it reads better with a line a score: few methods, and scores by the dozen."""
        return len(self.lines) <= NAMED

    def markdown(self) -> str:
        """Return the table in Markdown, the best of each score in bold.

        With a line a score, it also marks significant differences.
        """
        names = [f"`{texts[0]}`" for texts in self.lines]
        cells = [
            [
                f"**{texts[1 + score]}**" if place in self.best[score] else texts[1 + score]
                for score in range(len(self.best))
            ]
            for place, texts in enumerate(self.lines)
        ]
        if not self.turned:
            return pipe_table(self.header, [[n, *own] for n, own in zip(names, cells, strict=True)])
        columns = list(zip(cells, self.differing, strict=True))
        rows = [
            [escaped(heading), *(own[score] + marks[score] for own, marks in columns)]
            for score, heading in enumerate(self.header[1:])
        ]
        table = pipe_table(["score", *names], rows)
        marked = any(mark for marks in self.differing for mark in marks)
        return f"{table}\n\n{LEGEND.format(reference=f'`{self.reference}`')}" if marked else table


def overview(comparison: Comparison) -> Overview:
    """Choose the leading scores of each perspective and write a line for each column.

    Whatever would tell another story stands by itself: each attack, recipe of a text attack, kind
    of token corruption and detector of anomalies, calibration before and after temperature scaling.
    Several sets stand with their mean, several radii with the middle one, the layers with the
    logits, or the last one without them.

    Args:
        comparison: All scores.

    Returns:
        The overview; no scores beside the names where there are none.
    """
    rows = [row for view in views() for row in leading(comparison, view.name)]
    return Overview(
        header=("method", *(_heading(row) for row in rows)),
        lines=tuple((name, *(row.text(name) for row in rows)) for name in comparison.columns),
        best=tuple(_best(comparison, row) for row in rows),
        differing=tuple(tuple(mark_of(row, name) for row in rows) for name in comparison.columns),
        reference=comparison.reference or "",
    )


def leading(comparison: Comparison, perspective: str) -> list[Row]:
    """Return the rows by which a perspective is summed up, see `overview`.

    Args:
        comparison: All scores.
        perspective: Its name; one without scores has no rows.
    """
    view = views().of(perspective)
    return view.sums_up(comparison.of(perspective, view.lead(comparison.metric)))


def error_of(row: Row, reference: str) -> float | None:
    """Return what lies between the reference and a perfect score, None where that says nothing.

    Args:
        row: The score.
        reference: The column.
    """
    facts = SCORES.get(row.key.name)
    start = row.cells[reference].mean
    if facts is None or facts.perfect is None or start is None or row.higher_is_better is None:
        return None
    gap = facts.perfect - start
    return gap if gap not in (0.0, float("inf"), float("-inf")) else None


def _heading(row: Row) -> str:
    label = _IMPROVEMENTS.get(row.key.perspective, row.label)
    if short := views().of(row.key.perspective).short:
        # Scores of other groups are called alike.
        label = f"{short}: {label[:1].lower()}{label[1:]}"
    return row.heading(label)


def _best(comparison: Comparison, row: Row) -> frozenset[int]:
    means = {
        place: mean
        for place, name in enumerate(comparison.columns)
        if (mean := row.cells[name].mean) is not None
    }
    # One seed or two show nothing, and a value that all share distinguishes none.
    seeds = min((len(cell.seeds) for cell in row.cells.values()), default=0)
    if len(set(means.values())) < 2 or seeds < SEEDS or row.higher_is_better is None:
        return frozenset()
    best = max(means.values()) if row.higher_is_better else min(means.values())
    return frozenset(place for place, mean in means.items() if mean == best)
