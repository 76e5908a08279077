"""Say in plain sentences what came out: which column holds best and what is inside the noise."""

from __future__ import annotations

from collections import Counter

from temper.display.cells import NAMED, Comparison, Difference, Row
from temper.display.wording import listed, plural
from temper.functional.intervals import LEAST_SEEDS, LEVEL
from temper.functional.units import PERCENT
from temper.report.derived import SUMMARY, views


def _ahead(row: Row, column: str) -> int:
    """Return 1 where the column's mean is the better one, -1 where it is worse, else 0."""
    difference = row.cells[column].difference
    if difference is None or not difference.mean:
        return 0
    return 1 if (difference.mean > 0) == row.higher_is_better else -1


def _scored(comparison: Comparison) -> list[Row]:
    """Return the rows that say how well a column holds."""
    # The summary, the ranks and means over sets or groups repeat what the other rows say; counted,
    # they would count twice.
    # What an answer costs is no robustness, and a score without a direction makes no column better.
    return [
        row
        for row in comparison.shown
        if views().of(row.key.perspective).judged
        and not row.key.over_sets
        and row.key.name != "mean_group"
        and row.higher_is_better is not None
    ]


def _column(comparison: Comparison, column: str) -> str:
    compared = [row for row in _scored(comparison) if row.cells[column].difference is not None]
    # A score that lacks a seed or rows says so in its row; it is no part of the outcome.
    rows = [row for row in compared if not _withheld(row, column)]
    verdicts = Counter(
        difference.verdict
        for row in rows
        if (difference := row.cells[column].difference) is not None
    )
    total = len(rows)
    parts = []
    decided = verdicts["better"] + verdicts["worse"] + verdicts["inside the noise"]
    if decided:
        # Holm's rule only bites where several columns were tried.
        kept = sum(
            difference.verdict == "better" and (difference.holm_p or 0.0) <= LEVEL
            for row in rows
            if (difference := row.cells[column].difference) is not None
        )
        several = len(comparison.columns) > 2 and verdicts["better"] > 0
        after = f" ({kept} after Holm's correction)" if several else ""
        parts.append(
            f"{column} is better than {comparison.reference} on {verdicts['better']} of "
            f"{plural(total, 'score')}{after}, worse on {verdicts['worse']}, and inside "
            f"the noise on {verdicts['inside the noise']}"
        )
    if verdicts["undecidable"]:
        ahead = sum(_ahead(row, column) > 0 for row in rows)
        behind = sum(_ahead(row, column) < 0 for row in rows)
        parts.append(
            f"{column} has the better mean on {ahead} of {plural(total, 'score')} and the worse "
            f"on {behind}"
        )
    if total and verdicts["no common seed"] == total:
        parts.append(f"{column} has no finished seed in common with {comparison.reference}")
    elif verdicts["no common seed"]:
        parts.append(f"{plural(verdicts['no common seed'], 'score')} had no common seed")
    if len(compared) > total:
        parts.append(
            f"no verdict on {plural(len(compared) - total, 'score')} for lack of seeds or rows"
        )
    return (
        "; ".join(parts) or f"{column} has no score in common with {comparison.reference}"
    ) + "."


def _withheld(row: Row, column: str) -> bool:
    """Tell whether a score by itself lacks seeds or rows that others have."""
    difference = row.cells[column].difference
    return difference is not None and difference.verdict in ("seeds missing", "too few rows")


def _decided(row: Row, column: str) -> bool:
    """Tell whether there were seeds enough to say more than which mean is higher."""
    difference = row.cells[column].difference
    return difference is not None and difference.verdict in ("better", "worse", "inside the noise")


def _holds(names: list[str]) -> str:
    return f"{listed(names)} {'holds' if len(names) == 1 else 'hold'}"


def _best(comparison: Comparison) -> str:
    """Name the column that holds best: by the average relative improvement, else by rows won."""
    others = [name for name in comparison.columns if name != comparison.reference]
    summary = [row for row in comparison.of(SUMMARY.name) if not row.key.set]
    if summary:
        row = summary[0]
        means = {
            name: mean for name in comparison.columns if (mean := row.cells[name].mean) is not None
        }
        if means:
            if not any(_decided(row, name) for name in others):
                return ""
            leaders = [name for name in means if means[name] == max(means.values())]
            best = leaders[0]
            if comparison.reference in leaders:
                return (
                    f"No column improves on {comparison.reference}, "
                    "by the average relative improvement."
                )
            gain = f"{row.unit.text(means[best], signed=True)} %"
            difference = row.cells[best].difference
            if difference is not None and not _decided(row, best):
                return (
                    f"The best mean of the average relative improvement, {gain} for "
                    f"{listed(leaders)}, cannot be told from noise: {difference.said}."
                )
            if difference is None or difference.verdict != "better":
                return (
                    f"No column can be told from {comparison.reference} by the average relative "
                    f"improvement: the best mean, {gain} for {listed(leaders)}, is inside the "
                    "noise."
                )
            return (
                f"{_holds(leaders)} best{_of_which(comparison)}, with an average relative "
                f"improvement of {gain} over {comparison.reference}{_after_holm(difference)}."
            )
    if not any(_decided(row, name) for row in _scored(comparison) for name in others):
        return ""
    lead = {name: sum(_ahead(row, name) for row in _scored(comparison)) for name in others}
    leaders = [name for name in others if lead[name] == max(lead.values())]
    if max(lead.values()) <= 0:
        return f"No column holds better than {comparison.reference} on most scores."
    return f"{_holds(leaders)} best by the number of scores with the better mean."


def _after_holm(difference: Difference) -> str:
    """Say where the best of several columns may be the best of several chances."""
    if difference.holm_p is None or difference.holm_p <= LEVEL:
        return ""
    return ", though not after Holm's correction over the columns"


def _of_which(comparison: Comparison) -> str:
    """Say what the average relative improvement is over where parts of it are missing."""
    parts = {row.key.set for row in comparison.of(SUMMARY.name)} - {""}
    every = [view for view in views() if view.improves]
    if len(parts) == len(every):
        return ""
    return f" in {listed([view.title.lower() for view in every if view.name in parts])} alone"


def answer(comparison: Comparison) -> str:
    """Say what came out of a comparison.

    Args:
        comparison: The finished rows; its own ``answer`` is ignored.

    Returns:
        Plain sentences. They claim a difference only where the 95 % interval leaves 0 out.
    """
    if comparison.reference is None:
        leading = comparison.of("task", comparison.metric)
        said = [
            f"{row.label}: {row.text(name)}{' ' + PERCENT.sign if row.unit == PERCENT else ''}"
            for row in leading
            for name in comparison.columns
        ]
        about = f"{listed(said)}. " if said else ""
        return f"{about}One model alone: nothing to compare it with."
    others = [name for name in comparison.columns if name != comparison.reference]
    if not others:
        return f"Only {comparison.reference} was run: nothing to compare it with."
    if comparison.unfinished and not comparison.comparable:
        return comparison.unfinished
    decided = [name for name in others if any(_decided(row, name) for row in _scored(comparison))]
    # Of many columns, those of which nothing can be said yet need no sentence each.
    told = others if len(others) <= NAMED else decided
    said = [comparison.unfinished, _best(comparison)]
    said += [_column(comparison, name) for name in told]
    undecided = [
        name
        for name in others
        if any(
            difference.verdict == "undecidable" and len(difference.seeds) < LEAST_SEEDS
            for row in _scored(comparison)
            if (difference := row.cells[name].difference) is not None
        )
    ]
    if any(
        difference.examples is not None
        for row in _scored(comparison)
        for name in others
        if (difference := row.cells[name].difference) is not None
    ):
        said.append(
            "These intervals are over the examples of one seed: they compare these models, and "
            "three seeds (--seeds 0,1,2) would compare the methods."
        )
    elif undecided:
        whose = "" if undecided == others else f" of {listed(undecided)}"
        said.append(
            f"With fewer than three common seeds no mean{whose} can be told from noise; give "
            "three (--seeds 0,1,2)."
        )
    return " ".join(sentence for sentence in said if sentence)
