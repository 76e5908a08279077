"""Measure how much the accuracy under shift depends on the seed (docs/seed-spread.md).

    python -m reproduction.seed_spread run --data FOLDER --models FOLDER --scratch FOLDER
    python -m reproduction.seed_spread table --write docs/seed-spread.md

A finished evaluation is one line of ``reproduction/results/seed-spread/runs.jsonl``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

from safetensors.torch import load_file, save_file
from scipy.stats import f

import temper
from reproduction.base_size_table import PROTOCOL
from reproduction.document import run_or_print
from reproduction.kept import add_run, read_runs
from reproduction.lines import Interval
from reproduction.which_model import prepared
from temper.cli.screen import say
from temper.data.sources import load_splits
from temper.models.folders import save_model
from temper.study.alternatives import FROZEN, fit_alternative
from temper.training.config import RunConfig

FILE: Final = Path("reproduction/results/seed-spread/runs.jsonl")
MODEL, TASK, ROWS, MAX_LENGTH = "mpnet-base", "sst2", 1000, 64
SEEDS: Final = range(10)
SET_ROWS: Final = 200
"""Rows of each shifted set."""
TRAIN: Final = {**PROTOCOL["train"], "learning_rate": 4e-5}
"""The settings of docs/base-size.md, with the learning rate that was chosen there."""
PLAIN, START, INTERPOLATED = "plain", "linear start", "linear start, interpolated"
COLUMNS: Final = (PLAIN, START, INTERPOLATED)
ALPHA: Final = 0.5
WEIGHTS: Final = "model.safetensors"


def interpolate(start: Path, trained: Path) -> None:
    """Replace trained weights by the mean of the initial and the trained ones, as WiSE-FT does.

    The classifier keeps its trained weights.
    """
    before, after = load_file(start / WEIGHTS), load_file(trained / WEIGHTS)
    mean = {
        name: tensor if name.startswith("classifier.") else before[name].lerp(tensor, ALPHA)
        for name, tensor in after.items()
    }
    save_file(mean, trained / WEIGHTS, metadata={"format": "pt"})


def trained(seed: int, rows: Path, model: Path, scratch: Path) -> Iterator[tuple[str, Path]]:
    """Yield each column and the folder of its model, which the next column may overwrite."""
    settings: dict[str, Any] = {
        "model": str(model),
        "method": {"name": "plain"},
        "seed": seed,
        "data": {"source": str(rows), "task": TASK, "max_length": MAX_LENGTH},
        "train": TRAIN,
    }
    start, run = scratch / "start", scratch / "run"
    shutil.rmtree(run, ignore_errors=True)
    temper.train(config=settings, out=run, resume=False)
    yield PLAIN, run
    config = RunConfig.of(settings)
    linear = fit_alternative(FROZEN, config, load_splits(config.data).train, seed=seed)
    save_model(linear.model, linear.tokenizer, start)
    settings |= {"model": str(start), "train": {**TRAIN, "new_head": False}}
    shutil.rmtree(run)
    temper.train(config=settings, out=run, resume=False)
    yield START, run
    interpolate(start, run)
    yield INTERPOLATED, run
    shutil.rmtree(run)


def evaluated(run: Path, rows: Path, data: Path, scratch: Path) -> dict[str, float]:
    """Return the accuracy on the development rows and on each shifted set."""
    out = scratch / "evaluation"
    result = temper.evaluate(
        run,
        f"{rows}@test",
        task=TASK,
        out=out,
        suite="sentiment",
        data_root=data,
        eval_rows=SET_ROWS,
        perspectives=["task", "shift"],
        evaluate={"precision": "bf16"},
    )
    shutil.rmtree(out)
    return {
        row.set: round(float(row.value), 6)
        for row in result.scores.itertuples()
        if row.name == "accuracy" and row.condition == "clean"
    }


def finished() -> dict[tuple[int, str], dict[str, float]]:
    """Return the accuracies by seed and column."""
    return {(line["seed"], line["column"]): line["accuracy"] for line in read_runs(FILE)}


def run(data: Path, models: Path, scratch: Path) -> None:
    """Run the seeds that miss a column."""
    rows = prepared(data, scratch, TASK, ROWS)
    for seed in SEEDS:
        if all((seed, column) in finished() for column in COLUMNS):
            continue
        for column, folder in trained(seed, rows, models / MODEL, scratch):
            if (seed, column) in finished():
                continue
            say(f"seed {seed}: {column}")
            accuracy = evaluated(folder, rows, data, scratch)
            add_run(FILE, {"seed": seed, "column": column, "accuracy": accuracy})


def under_shift(accuracy: dict[str, float]) -> float:
    """Return the mean accuracy over the shifted sets, in percent."""
    return 100 * fmean(value for name, value in accuracy.items() if name != "dev")


def ratio(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """Return the ratio of two standard deviations and its 95% F-interval."""
    value = stdev(first) / stdev(second)
    ends = f.ppf([0.975, 0.025], len(first) - 1, len(second) - 1) ** 0.5
    low, high = value / ends
    return value, float(low), float(high)


def table() -> str:
    """Return mean and standard deviation of each column, against plain fine-tuning."""
    done = finished()
    seeds = [seed for seed in SEEDS if all((seed, column) in done for column in COLUMNS)]
    if len(seeds) < 3:
        return "Not run."
    lines = [
        "| | development rows | shifted sets | difference | standard deviation | ratio |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    shift = {column: [under_shift(done[s, column]) for s in seeds] for column in COLUMNS}
    for column in COLUMNS:
        dev = 100 * fmean(done[seed, column]["dev"] for seed in seeds)
        difference = spread = ""
        if column != PLAIN:
            pairs = zip(shift[column], shift[PLAIN], strict=True)
            gain = Interval.of([each - plain for each, plain in pairs])
            assert gain is not None
            difference = f"{gain.mean:+.1f} [{gain.low:+.1f}, {gain.high:+.1f}]"
            value, low, high = ratio(shift[column], shift[PLAIN])
            spread = f"{value:.2f} [{low:.2f}, {high:.2f}]"
        lines.append(
            f"| {column} | {dev:.1f} | {fmean(shift[column]):.1f} | {difference} | "
            f"{stdev(shift[column]):.2f} | {spread} |"
        )
    return "\n".join([*lines, "", f"{len(seeds)} seeds."])


if __name__ == "__main__":
    run_or_print(__doc__, run, table, folders=("data", "models", "scratch"))
