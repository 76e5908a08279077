"""Print which method to take for each kind of data and model that was measured.

    python -m reproduction.chooser [--write docs/methods/README.md]

Scores decide after temperature scaling of both sides: the Brier score of classes and of several
labels, strict F1 of entities. A column is taken if its gain over plain fine-tuning, and of a method
also its gain over plain fine-tuning of at least equal compute, has an interval above 0: t intervals
paired by seed, with Bonferroni's correction for the number of columns. Of several such columns the
one with the largest gain is taken, of none ``plain``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pandas

from reproduction import base_size, base_size_table, emotions, entities, which_model
from reproduction.document import table_command
from reproduction.gains import paired_gain, text_of
from temper.display.wording import pipe_table
from temper.functional.effects import LEAST_SEEDS, Effect

RESULTS = Path("reproduction/results")
Scores = dict[str, dict[int, float]]
"""Column -> seed -> score in percent, higher is better."""
SUITES: dict[str, dict[str, float]] = {
    "effect-confirm": {"plain": 1, "plain_long": 2, "lp_ft": 1, "uegr_one_pass": 2},
    "effect-confirm-2": {"plain": 1, "plain_long": 3, "soup": 3},
}
"""Suite of held-out benchmarks -> column -> compute of the training over that of ``plain``."""
BRIER = "Brier score after temperature scaling"
HEADINGS = (
    "you have",
    "take",
    "gain in Brier score or F1",
    "in accuracy, mAP or MCC",
    "compute",
    "not confirmed",
    "evidence",
)


def line(
    situation: str, evidence: str, deciding: Scores, shown: Scores, compute: dict[str, float]
) -> list[str]:
    """Return the line of the table for one kind of data and model.

    Args:
        situation: Rows, model and head.
        evidence: Link to the page of results.
        deciding: The scores that decide.
        shown: The scores that are shown with them; may be empty.
        compute: Column -> compute of its training over that of ``plain``.
    """
    confirmed: dict[str, Effect] = {}
    others = [column for column in deciding if column != "plain"]
    for column in others:
        gains = [
            paired_gain(deciding[column], deciding[name], comparisons=len(others))
            for name in baselines(column, compute)
        ]
        positive = [gain for gain in gains if gain is not None and gain.low > 0]
        if len(positive) == len(gains):
            confirmed[column] = positive[0]
    taken = max(confirmed, key=lambda column: confirmed[column].mean, default="plain")
    more = paired_gain(shown[taken], shown["plain"]) if confirmed and shown else None
    return [
        situation,
        f"`{taken}`",
        text_of(confirmed.get(taken)),
        text_of(more),
        f"{compute[taken]:g}x",
        ", ".join(f"`{column}`" for column in others if column != taken),
        evidence,
    ]


def baselines(column: str, compute: dict[str, float]) -> list[str]:
    """Return the columns that a column must beat: ``plain``, and of a method its equal in compute.

    Example:
        >>> baselines("uegr", {"plain": 1, "plain_x2": 2, "plain_x3": 3, "uegr": 2})
        ['plain', 'plain_x2']
        >>> baselines("plain_x2", {"plain": 1, "plain_x2": 2})
        ['plain']
    """
    plain = [name for name in compute if name.startswith("plain")]
    if column in plain:
        return ["plain"]
    equal = min(
        (name for name in plain if compute[name] >= compute[column]),
        key=lambda name: compute[name],
        default="plain",
    )
    return list(dict.fromkeys(("plain", equal)))


def of_suite(suite: str) -> tuple[Scores, Scores]:
    """Return the scores of held-out benchmarks: minus the Brier score over all sets, and accuracy.

    Both are means over the sets, then over the benchmarks.
    """
    result: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for file in sorted((RESULTS / suite).glob("*/scores.parquet")):
        scores = pandas.read_parquet(file)
        for part, factor, perspective, condition, name in (
            ("deciding", -100, "calibration", "temperature", "brier"),
            ("shown", 100, "task", "clean", "accuracy"),
        ):
            own = scores[
                (scores["perspective"] == perspective)
                & (scores["condition"] == condition)
                & (scores["name"] == name)
            ]
            means = factor * own.groupby(["column", "seed"])["value"].mean()
            for (column, seed), value in means.items():
                result[part, column, int(seed)].append(float(value))
    parts: dict[str, Scores] = {"deciding": defaultdict(dict), "shown": defaultdict(dict)}
    for (part, column, seed), values in result.items():
        parts[part][column][seed] = fmean(values)
    return parts["deciding"], parts["shown"]


def lines() -> Iterator[list[str]]:
    """Yield the lines of the table."""
    for suite, compute in SUITES.items():
        benchmarks = len(list((RESULTS / suite).glob("*/scores.parquet")))
        yield line(
            f"classes: 1,000 rows, MiniLM (22M), {benchmarks} benchmarks",
            f"[what helps](../results/{suite}.md)",
            *of_suite(suite),
            compute,
        )
    times: dict[str, float] = {"plain": 1, "plain_x2": 2, "plain_x3": 3, **entities.COMPUTE}
    for rows in entities.EPOCHS:
        values = entities.values_of(rows)
        if values and len(values["plain"]["shift"]) == len(entities.SEEDS):
            deciding = {column: scores["conll test"] for column, scores in values.items()}
            situation = f"entities: {rows:,} sentences, MiniLM (22M)"
            yield line(situation, "[entities](../entities.md)", deciding, {}, times)
    runs = emotions.complete_runs()
    if runs:
        deciding, shown = (
            {
                column: {seed: factor * line[score] for seed, line in by_seed.items()}
                for column, by_seed in runs.items()
            }
            for score, factor in (("brier", -100), ("map", 100))
        )
        situation = f"several labels: {emotions.ROWS:,} rows, MiniLM (22M)"
        yield line(situation, "[emotions](../emotions.md)", deciding, shown, times)
    for rows in which_model.ROWS:
        yield from of_models(rows)
    yield from of_base_size()


def of_models(rows: int) -> Iterator[list[str]]:
    """Yield the line that compares models and linear classifiers on their embeddings."""
    cells = len(which_model.TASKS) * len(which_model.SEEDS)
    result = {
        "plain" if column == "minilm" else column: [by_cell[cell] for cell in sorted(by_cell)]
        for column, by_cell in which_model.by_column(rows).items()
        if len(by_cell) == cells
    }
    if "plain" not in result:
        return
    deciding, shown, seconds = (
        {
            name: {n: factor * cell[score] for n, cell in enumerate(of)}
            for name, of in result.items()
        }
        for score, factor in (("brier", -100), ("accuracy", 100), ("train_seconds", 1))
    )
    means = {name: fmean(values.values()) for name, values in seconds.items()}
    compute = {name: round(mean / means["plain"], 1) for name, mean in means.items()}
    situation = f"classes: {rows:,} rows, {len(which_model.TASKS)} tasks; which model"
    yield line(situation, "[which model](../which-model.md)", deciding, shown, compute)


def of_base_size() -> Iterator[list[str]]:
    """Yield a line for every task on which all plain columns and a method have enough seeds."""
    cells = base_size.finished(RESULTS / "base-size")
    chosen = {side: rate for side, (rate, _) in base_size.rates(cells).items()}
    used = base_size_table.at_chosen_rates(cells, chosen)
    epochs = base_size_table.PROTOCOL["train"]["epochs"]
    compute = {
        name: column.get("cost", column.get("epochs", epochs) / epochs)
        for name, column in base_size_table.PROTOCOL["column"].items()
    }
    (brier,) = (each for each in base_size_table.METRICS if each.title == BRIER)
    for task, settings in base_size_table.PROTOCOL["task"].items():
        deciding, shown = (
            {
                column: {seed: each.sign * value for seed, value in by_seed.items()}
                for column, by_seed in base_size_table.scores(used, task, each).items()
                if len(by_seed) >= LEAST_SEEDS
            }
            for each in (brier, base_size_table.GLUE)
        )
        if {*base_size_table.PLAIN} < deciding.keys():
            rows = f"{settings['rows']:,} rows" if "rows" in settings else "all rows"
            yield line(
                f"classes: {rows} of {task}, MPNet-base (109M)",
                "[base size](../base-size.md)",
                deciding,
                shown,
                compute,
            )


def table() -> str:
    """Return the table."""
    return pipe_table(HEADINGS, list(lines()))


if __name__ == "__main__":
    table_command(__doc__, table)
