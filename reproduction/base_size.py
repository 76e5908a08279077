"""Run the cells of docs/base-size.md and print their tables.

    python -m reproduction.base_size run --model FOLDER --data FOLDER
    python -m reproduction.base_size choose       the learning rates, from validation rows alone
    python -m reproduction.base_size table        scores, gains and verdicts, as Markdown
    python -m reproduction.base_size table --write docs/base-size.md      the same, in the document

A cell is one task, column, seed and learning rate. A finished cell is one line of ``runs.jsonl``,
so a stopped run loses one cell, and results of several machines can be appended to each other.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import temper
from reproduction.base_size_table import (
    FIRST,
    LAST,
    PROTOCOL,
    VALIDATION,
    first_near_best,
    of_sets,
    tables,
)
from reproduction.kept import add_run, read_runs
from temper.cli.screen import print_table, say
from temper.errors import SettingError

FOLDER = Path("reproduction/results/base-size")
KEPT: dict[str, tuple[str, ...]] = {
    "task": (),
    "shift": ("accuracy",),
    "adversarial": ("accuracy",),
    "calibration": ("ece_10", "brier", "nll"),
    "anomaly": ("auroc",),
}
"""Scores of a cell that are stored, by perspective; none named: all of them."""
VALIDATION_ROWS = 1000
"""Rows of a task's training file that settings are chosen by; no model is trained on them."""
SUITE_ROWS = 300
"""Rows of each shifted, adversarial and out-of-distribution set."""


@dataclass(frozen=True)
class Cell:
    """One run: a column on a task, with one seed and learning rate."""

    stage: str
    task: str
    column: str
    seed: int
    rate: float

    @property
    def key(self) -> tuple[str, str, int, float]:
        """What makes two cells the same run, whatever stage asks for them."""
        return self.task, self.column, self.seed, self.rate

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return f"{self.task}-{self.column}-{self.rate:g}-s{self.seed}"


def finished(folder: Path) -> list[dict[str, Any]]:
    """Return the stored lines; a line that a kill cut off is left out."""
    return read_runs(folder / "runs.jsonl")


def key_of(line: Mapping[str, Any]) -> tuple[str, str, int, float]:
    """Return the `Cell.key` of a stored line."""
    return line["task"], line["column"], line["seed"], line["rate"]


def is_whole(line: Mapping[str, Any]) -> bool:
    """Whether no part of a stored line is missing; the first lines of SST-2 have no shift."""
    suite = "suite" in PROTOCOL["task"][line["task"]]
    return not suite or any(row[0] == "shift" for row in line["suite"])


def rates(lines: list[dict[str, Any]]) -> dict[str, tuple[float, dict[float, float]]]:
    """Choose each side's learning rate, by the mean over the tasks of the validation scores.

    Of rates within 0.3 points of the best the lowest, since a high rate costs calibration.

    Returns:
        Side -> the rate, and the mean score of every rate that all tasks have.
    """
    (stage,) = (each for each in PROTOCOL["stage"] if each["name"] == "rates")
    chosen = {}
    for column in stage["columns"]:
        scores: dict[float, dict[str, float]] = defaultdict(dict)
        for line in lines:
            asked = line["seed"] in stage["seeds"] and line["task"] in stage["tasks"]
            if asked and line["column"] == column:
                values = of_sets(line, VALIDATION).values()
                scores[line["rate"]][line["task"]] = fmean(values)
        means = {
            rate: fmean(by_task.values())
            for rate, by_task in sorted(scores.items())
            if len(by_task) == len(stage["tasks"])
        }
        if means:
            chosen[PROTOCOL["column"][column]["side"]] = (first_near_best(means), means)
    return chosen


def cells(stage: Mapping[str, Any], chosen: Mapping[str, float]) -> Iterator[Cell]:
    """Yield a stage's cells, most informative first: all tasks and columns at one seed."""
    for seed in stage["seeds"]:
        for task in stage["tasks"]:
            for column in stage["columns"]:
                side = PROTOCOL["column"][column]["side"]
                for rate in stage.get("rates") or [chosen[side]]:
                    yield Cell(stage["name"], task, column, seed, rate)


def run_cell(cell: Cell, model: str, data: Path, scratch: Path) -> dict[str, Any]:
    """Train and evaluate one cell, and return its line."""
    task, column = PROTOCOL["task"][cell.task], PROTOCOL["column"][cell.column]
    started = time.perf_counter()
    settings = {**PROTOCOL["train"], "learning_rate": cell.rate}
    settings["epochs"] = column.get("epochs", settings["epochs"])
    run = temper.train(
        data / task["train"],
        model=model,
        task=cell.task,
        rows=task.get("rows"),
        max_length=task["max_length"],
        drop_overlap=True,
        method={"name": column["method"], **column.get("settings", {})},
        train=settings,
        seed=cell.seed,
        out=scratch / cell.name,
    )
    trained = time.perf_counter()
    out = scratch / f"{cell.name}-reported"
    measured: dict[str, Any] = {
        "perspectives": ["task", "calibration"],
        "evaluate": {"precision": "bf16"},
    }
    line: dict[str, Any] = {"validation": []}
    if task["choose_by"]:
        validation = scratch / f"{cell.name}-validation"
        line["validation"] = _scores(
            temper.evaluate(run, out=validation, eval_rows=VALIDATION_ROWS, **measured)
        )
    reported = str(data / task["reported"])
    line["reported"] = _scores(temper.evaluate(run, reported, task=cell.task, out=out, **measured))
    if "suite" in task:
        measured |= {"suite": task["suite"], "data_root": data, "eval_rows": SUITE_ROWS}
        measured["perspectives"] = ["task", "shift", "adversarial", "calibration", "anomaly"]
        measured["evaluate"] |= {"anomaly": {"detectors": ["max_softmax", "mahalanobis"]}}
        out = scratch / f"{cell.name}-suite"
        line["suite"] = _scores(temper.evaluate(run, reported, task=cell.task, out=out, **measured))
    seconds = {"train": trained - started, "evaluate": time.perf_counter() - trained}
    for left in scratch.glob(f"{cell.name}*"):
        shutil.rmtree(left)
    return {
        "stage": cell.stage,
        "task": cell.task,
        "column": cell.column,
        "seed": cell.seed,
        "rate": cell.rate,
        "seconds": {name: round(value) for name, value in seconds.items()},
        "commit": _commit(),
        **line,
    }


def _scores(result: Any) -> list[list[Any]]:
    return [
        [row.perspective, row.set, row.condition, row.name, round(float(row.value), 6)]
        for row in result.scores.itertuples()
        # Scores without a value are NaN, which is unlike itself.
        if (not (names := KEPT.get(row.perspective, ())) or row.name in names)
        and row.perspective in KEPT
        and row.value == row.value
    ]


def _commit() -> str:
    result = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
    return result.stdout.strip()[:12]


def run(model: str, data: Path, folder: Path, scratch: Path) -> None:
    """Run the cells that have no line yet, stage by stage."""
    folder.mkdir(parents=True, exist_ok=True)
    for stage in PROTOCOL["stage"]:
        chosen = {side: rate for side, (rate, _) in rates(finished(folder)).items()}
        for cell in cells(stage, chosen):
            done = [line for line in finished(folder) if stage["name"] == "rates" or is_whole(line)]
            if cell.key in map(key_of, done):
                continue
            say(f"{stage['name']}: {cell.name}")
            line = run_cell(cell, model, data, scratch)
            add_run(folder / "runs.jsonl", line)


def choose(folder: Path) -> None:
    """Print the learning rates that validation rows choose."""
    rows = [
        {"side": side, "rate": f"{rate:g}", "validation": f"{mean:.1f}", "chosen": rate == best}
        for side, (best, means) in rates(finished(folder)).items()
        for rate, mean in means.items()
    ]
    print_table(rows, ["side", "rate", "validation", "chosen"])


def table(folder: Path, document: Path | None) -> None:
    """Print the tables, or write them between the markers of a document."""
    lines = finished(folder)
    (stage,) = (each for each in PROTOCOL["stage"] if each["name"] == "rates")
    chosen = {
        side: rate
        for side, (rate, means) in rates(lines).items()
        if len(means) == len(stage["rates"])
    }
    text = tables(lines, chosen)
    if document is None:
        sys.stdout.write(f"{text}\n")
        return
    old = document.read_text(encoding="utf-8")
    between = re.compile(f"{re.escape(FIRST)}.*?{re.escape(LAST)}", re.DOTALL)
    document.write_text(between.sub(lambda _: f"{FIRST}\n{text}\n{LAST}", old), encoding="utf-8")


def main() -> None:
    """Parse the command line."""
    parser = ArgumentParser("python -m reproduction.base_size", description=__doc__)
    parser.add_argument("action", choices=["run", "choose", "table"])
    parser.add_argument("--model", help="folder of the base model")
    parser.add_argument("--data", type=Path, help="folder with a folder for each task")
    parser.add_argument("--results", type=Path, default=FOLDER)
    parser.add_argument("--scratch", type=Path, default=Path("runs/base-size"))
    parser.add_argument("--write", type=Path, help="document that `table` writes into")
    given = parser.parse_args()
    if given.action == "choose":
        choose(given.results)
    elif given.action == "table":
        table(given.results, given.write)
    elif not given.model or not given.data:
        raise SettingError("Pass --model and --data.")
    else:
        run(given.model, given.data, given.results, given.scratch)


if __name__ == "__main__":
    main()
