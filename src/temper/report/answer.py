"""Say in plain sentences what came out: which column holds best and what is inside the noise."""

from __future__ import annotations

from collections import Counter

from temper.display.cells import NAMED, NOISE, WITHIN, Comparison, Difference, Row, Verdict
from temper.display.wording import listed, plural
from temper.functional.effects import LEAST_SEEDS, LEVEL
from temper.functional.units import PERCENT
from temper.report.derived import SUMMARY, views

DECIDED: tuple[Verdict, ...] = ("better", "worse", *WITHIN, NOISE)
"""Verdicts that say more than which mean is higher."""


def _judged(comparison: Comparison, column: str) -> list[tuple[Row, Difference]]:
    """Return the scores that say how well a column holds, with their differences."""
    # The summary, the ranks and means over sets or groups repeat what the other rows say; counted,
    # they would count twice.
    # What an answer costs is no robustness, and a score without a direction makes no column better.
    return [
        (row, difference)
        for row in comparison.shown
        if (difference := row.cells[column].difference) is not None
        and views().of(row.key.perspective).judged
        and not row.key.over_sets
        and row.key.name != "mean_group"
        and row.higher_is_better is not None
    ]


def _ahead(row: Row, difference: Difference) -> int:
    """Return 1 where the column's mean is the better one, -1 where it is worse, else 0."""
    if not difference.mean:
        return 0
    return 1 if (difference.mean > 0) == row.higher_is_better else -1


def _column(comparison: Comparison, column: str) -> str:
    compared = _judged(comparison, column)
    # A score that lacks a seed or rows says so in its row; it is no part of the outcome.
    rows = [
        (row, difference)
        for row, difference in compared
        if difference.verdict not in ("seeds missing", "too few rows")
    ]
    verdicts = Counter(difference.verdict for _, difference in rows)
    scores = plural(len(rows), "score")
    parts = []
    if any(verdicts[verdict] for verdict in DECIDED):
        # Holm's rule only bites where several columns were tried.
        kept = sum(
            difference.verdict == "better" and (difference.holm_p or 0.0) <= LEVEL
            for _, difference in rows
        )
        several = len(comparison.columns) > 2 and verdicts["better"] > 0
        after = f" ({kept} after Holm's correction)" if several else ""
        within = "".join(
            f", {verdict} by {comparison.margin:g} points on {verdicts[verdict]}"
            for verdict in ("no worse", "no better")
            if verdicts[verdict]
        )
        if verdicts["equal"]:
            within = f", equal within {comparison.margin:g} points on {verdicts['equal']}{within}"
        parts.append(
            f"{column} is better than {comparison.reference} on {verdicts['better']} of {scores}"
            f"{after}, worse on {verdicts['worse']}{within}, and inside the noise on "
            f"{verdicts[NOISE]}"
        )
    if verdicts["undecidable"]:
        ahead = Counter(_ahead(*both) for both in rows)
        parts.append(
            f"{column} has the better mean on {ahead[1]} of {scores} and the worse on {ahead[-1]}"
        )
    if rows and verdicts["no common seed"] == len(rows):
        parts.append(f"{column} has no finished seed in common with {comparison.reference}")
    elif verdicts["no common seed"]:
        parts.append(f"{plural(verdicts['no common seed'], 'score')} had no common seed")
    if withheld := len(compared) - len(rows):
        parts.append(f"no verdict on {plural(withheld, 'score')} for lack of seeds or rows")
    nothing = f"{column} has no score in common with {comparison.reference}"
    leading = _leading(comparison, column)
    return ("; ".join(parts) or nothing) + "." + (f" {leading}" if leading else "")


def _leading(comparison: Comparison, column: str) -> str:
    """Say what came out on the task's own metric, or what it would take to know."""
    for row in comparison.of("task", comparison.metric):
        difference = row.cells[column].difference
        if difference is None or difference.verdict not in DECIDED or row.key.over_sets:
            continue
        value, interval = row.difference_text(column)
        said = f"{row.label}: {value} {interval}, {difference.said}"
        if difference.verdict in WITHIN:
            return f"{said} by {comparison.margin:g} points."
        outlook = row.outlook(column) if difference.verdict == NOISE else ""
        return f"{said}; {outlook}." if outlook else f"{said}."
    return ""


def _best(comparison: Comparison, others: list[str]) -> str:
    """Name the column that holds best: by the average relative improvement, else by rows won."""
    summary = [row for row in comparison.of(SUMMARY.name) if not row.key.set]
    means = {
        name: cell.mean
        for row in summary
        for name, cell in row.cells.items()
        if cell.mean is not None
    }
    if means:
        return _best_mean(comparison, summary[0], means)
    judged = {name: _judged(comparison, name) for name in others}
    if not any(found.verdict in DECIDED for both in judged.values() for _, found in both):
        return ""
    lead = {name: sum(_ahead(*both) for both in judged[name]) for name in others}
    most = max(lead.values())
    if most <= 0:
        return f"No column holds better than {comparison.reference} on most scores."
    leaders = [name for name in others if lead[name] == most]
    return f"{_holds(leaders)} best by the number of scores with the better mean."


def _best_mean(comparison: Comparison, row: Row, means: dict[str, float]) -> str:
    """Name the column of the largest average relative improvement, as far as it is no noise."""
    differences = [cell.difference for cell in row.cells.values() if cell.difference is not None]
    if not any(difference.verdict in DECIDED for difference in differences):
        return ""
    leaders = [name for name in means if means[name] == max(means.values())]
    if comparison.reference in leaders:
        return f"No column improves on {comparison.reference}, by the average relative improvement."
    best = leaders[0]
    gain = f"{row.unit.text(means[best], signed=True)} %"
    difference = row.cells[best].difference
    if difference is not None and difference.verdict not in DECIDED:
        return (
            f"The best mean of the average relative improvement, {gain} for {listed(leaders)}, "
            f"cannot be told from noise: {difference.said}."
        )
    if difference is None or difference.verdict != "better":
        return (
            f"No column can be told from {comparison.reference} by the average relative "
            f"improvement: the best mean, {gain} for {listed(leaders)}, is inside the noise."
        )
    chances = difference.holm_p is not None and difference.holm_p > LEVEL
    # The best of several columns may be the best of several chances.
    after = ", though not after Holm's correction over the columns" if chances else ""
    return (
        f"{_holds(leaders)} best{_of_which(comparison)}, with an average relative improvement of "
        f"{gain} over {comparison.reference}{after}."
    )


def _holds(names: list[str]) -> str:
    return f"{listed(names)} {'holds' if len(names) == 1 else 'hold'}"


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
    judged = {name: [found for _, found in _judged(comparison, name)] for name in others}
    decided = [name for name in others if any(found.verdict in DECIDED for found in judged[name])]
    # Of many columns, those of which nothing can be said yet need no sentence each.
    told = others if len(others) <= NAMED else decided
    said = [comparison.unfinished, _best(comparison, others)]
    said += [_column(comparison, name) for name in told]
    undecided = [
        name
        for name in others
        if any(
            found.verdict == "undecidable" and len(found.seeds) < LEAST_SEEDS
            for found in judged[name]
        )
    ]
    if any(found.examples is not None for each in judged.values() for found in each):
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
