"""Run the cells of docs/which-model.md, five ways to a classifier, and print their tables.

    python -m reproduction.which_model run --data FOLDER --models FOLDER --scratch FOLDER
    python -m reproduction.which_model table --write docs/which-model.md

A cell is one task, number of rows, model, seed and learning rate; a finished one is one line of
``reproduction/results/which-model/runs.jsonl``, so a stopped run loses one cell.
"""

from __future__ import annotations

import gzip
import json
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

import temper
from reproduction.document import run_or_print
from reproduction.kept import add_run, read_runs
from temper.cli.screen import say
from temper.data.sources import load_examples
from temper.functional.calibration import (
    brier_of_rows,
    fit_temperature,
    probabilities_of,
    scaled,
)
from temper.study.alternatives import FROZEN, SETFIT, fit_alternative
from temper.training.config import RunConfig

FILE = Path("reproduction/results/which-model/runs.jsonl")
TASKS = {"sst2": "dev", "ag_news": "test", "cola": "dev", "trec": "test"}
"""Task -> the split whose rows are reported."""
ROWS = (200, 1000, 5000)
VALIDATION_ROWS, REPORTED_ROWS, TIMED_ROWS = 1000, 1000, 100
EPOCHS = {200: 10, 1000: 5, 5000: 3}
SEEDS = (0, 1, 2)
FINE_TUNED: dict[str, dict[str, Any]] = {
    "minilm": {"model": "minilm", "rates": (5e-5, 1e-4, 2e-4)},
    "mpnet_base": {"model": "mpnet-base", "rates": (2e-5, 4e-5, 8e-5), "precision": "bf16"},
    "smollm2_lora": {
        "model": "smollm2",
        "rates": (2e-4, 5e-4, 1e-3),
        "precision": "bf16",
        "lora": True,
    },
}
"""Name -> base model (a folder of --models, or a short name), learning rates tried, and options."""
FITTED = {
    "minilm_linear": ("minilm", FROZEN),
    "mpnet_base_linear": ("mpnet-base", FROZEN),
    "minilm_setfit": ("minilm", SETFIT),
}
"""Logistic regression on embeddings: of the model as it is, or after SetFit's training on pairs."""
WAVES = (
    ("minilm_linear", "mpnet_base_linear"),
    ("minilm",),
    ("minilm_setfit",),
    ("mpnet_base",),
    ("smollm2_lora",),
)
"""The columns in the order in which they are run."""
COLUMNS = tuple(column for columns in WAVES for column in columns)
Cell = tuple[str, int, str, int, float]
"""Task, training rows, column, seed, learning rate (0: none)."""


def prepared(data: Path, scratch: Path, task: str, rows: int) -> Path:
    """Write ``train`` (up to ``rows`` rows), ``dev`` (validation rows) and ``test`` of a task."""
    folder = scratch / f"{task}-{rows}"
    folder.mkdir(parents=True, exist_ok=True)
    order = np.random.default_rng(0)
    reported = [*order.permutation(lines_of(data / task, TASKS[task]))[:REPORTED_ROWS]]
    texts = {json.loads(line)["text"] for line in reported}
    train = [
        line
        for line in order.permutation(lines_of(data / task, "train"))
        if json.loads(line)["text"] not in texts
    ]
    parts = {
        "dev": train[:VALIDATION_ROWS],
        "train": train[VALIDATION_ROWS : VALIDATION_ROWS + rows],
        "test": reported,
    }
    for name, lines in parts.items():
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def lines_of(folder: Path, split: str) -> list[str]:
    """Return the lines of a split of one of the data sets."""
    # Not splitlines: some texts contain U+0085, which it would split at.
    (file,) = (each for each in folder.glob(f"{split}.jsonl*"))
    content = file.read_bytes()
    text = gzip.decompress(content) if file.suffix == ".gz" else content
    return text.decode("utf-8").rstrip("\n").split("\n")


def cells(chosen: dict[str, float]) -> Iterator[Cell]:
    """Yield the cells: cheap models first, learning rates, few rows, and one seed before three."""
    for columns in WAVES:
        tuned = [column for column in columns if column in FINE_TUNED]
        for task in TASKS:
            for column in tuned:
                for rate in FINE_TUNED[column]["rates"]:
                    yield task, 1000, column, 0, rate
        for seed, rows, task in product(SEEDS, ROWS, TASKS):
            for column in columns:
                if column in FITTED:
                    yield task, rows, column, seed, 0.0
                elif column in chosen:
                    yield task, rows, column, seed, chosen[column]


def finished() -> dict[Cell, dict[str, Any]]:
    """Return the kept results by cell."""
    return {tuple(line.pop("cell")): line for line in read_runs(FILE)}


def rates(done: dict[Cell, dict[str, Any]]) -> dict[str, float]:
    """Return the learning rate of each fine-tuned model whose cells are finished.

    It has the lowest Brier score after temperature scaling on validation rows, the mean over the
    tasks, with 1,000 rows and seed 0.
    """
    chosen = {}
    for column, settings in FINE_TUNED.items():
        asked = {rate: [(t, 1000, column, 0, rate) for t in TASKS] for rate in settings["rates"]}
        if all(cell in done for cells_of in asked.values() for cell in cells_of):
            scores = {
                rate: fmean(done[cell]["validation_brier"] for cell in cells_of)
                for rate, cells_of in asked.items()
            }
            chosen[column] = min(scores, key=lambda rate: scores[rate])
    return chosen


def run_cell(cell: Cell, data: Path, models: Path, scratch: Path) -> dict[str, Any]:
    """Train and evaluate one cell, and return its scores."""
    task, rows, column, seed, rate = cell
    folder = prepared(data, scratch, task, rows)
    name = FITTED[column][0] if column in FITTED else FINE_TUNED[column]["model"]
    model = str(models / name) if (models / name).is_dir() else name
    settings: dict[str, Any] = {
        "model": model,
        "method": {"name": "plain"},
        "seed": seed,
        "data": {"source": str(folder), "max_length": 64},
        "train": {"epochs": EPOCHS[rows], "batch_size": 16},
    }
    begun = time.perf_counter()
    if column in FITTED:
        config = RunConfig.model_validate(settings)
        train = load_examples(f"{folder}@train")
        predictor: Any = fit_alternative(FITTED[column][1], config, train, seed=seed)
    else:
        options = FINE_TUNED[column]
        precision = options.get("precision", "fp32")
        settings["train"] |= {"learning_rate": rate, "precision": precision}
        # Validation rows are predicted below, once.
        settings["train"]["evaluate"] = "off"
        lora = options.get("lora", False)
        # A killed cell leaves its run.
        shutil.rmtree(scratch / "run", ignore_errors=True)
        run = temper.train(config=settings, out=scratch / "run", lora=lora)
        predictor = run.load()
    seconds = time.perf_counter() - begun
    validation, reported = (load_examples(f"{folder}@{split}") for split in ("dev", "test"))
    fitted_on = predictor.predict(validation).logits
    temperature = fit_temperature(validation.labels or (), fitted_on).value
    begun = time.perf_counter()
    predictor.predict(reported.sample(min(TIMED_ROWS, len(reported)), seed=0))
    timed = time.perf_counter() - begun
    outputs = predictor.predict(reported).logits
    return {
        "cell": cell,
        "accuracy": float((outputs.argmax(1) == np.asarray(reported.labels)).mean()),
        "brier": _brier(reported.labels, outputs, temperature),
        "validation_brier": _brier(validation.labels, fitted_on, temperature),
        "train_seconds": round(seconds, 1),
        "predict_ms": round(1000 * timed / TIMED_ROWS, 3),
    }


def _brier(labels: Any, logits: Any, temperature: float) -> float:
    result = brier_of_rows(labels, probabilities_of(scaled(logits, temperature)))
    return round(float(result.mean()), 6)


def run(data: Path, models: Path, scratch: Path) -> None:
    """Run the cells that have no line yet."""
    scratch.mkdir(parents=True, exist_ok=True)
    while True:
        done = finished()
        left = [cell for cell in cells(rates(done)) if cell not in done]
        if not left:
            return
        say(f"{len(left)} cells left. Next: {left[0]}")
        line = run_cell(left[0], data, models, scratch)
        add_run(FILE, line)


def by_column(rows: int) -> dict[str, dict[tuple[str, int], dict[str, Any]]]:
    """Return the results for a number of training rows by column, task and seed."""
    done = finished()
    chosen = rates(done)
    result: dict[str, dict[tuple[str, int], dict[str, Any]]] = defaultdict(dict)
    for (task, size, column, seed, rate), scores in done.items():
        if size == rows and (column in FITTED or rate == chosen.get(column)):
            result[column][task, seed] = scores
    return result


def table() -> str:
    """Return a table for each number of training rows: means over tasks and seeds."""
    chosen = ", ".join(f"`{name}` {rate:g}" for name, rate in rates(finished()).items())
    lines = [f"Learning rates: {chosen or 'not chosen yet'}.", ""]
    for rows in ROWS:
        result = by_column(rows)
        lines += [
            f"**{rows:,} training rows**",
            "",
            f"| | {' | '.join(TASKS)} | accuracy | Brier score | training | per row | seeds |",
            "|---" * (len(TASKS) + 6) + "|",
        ]
        for column in COLUMNS:
            of_task: dict[str, list[dict[str, Any]]] = defaultdict(list)
            for (task, _), scores in result[column].items():
                of_task[task].append(scores)
            means = [
                f"{100 * fmean(each['accuracy'] for each in of_task[task]):.1f}"
                if task in of_task
                else "not run"
                for task in TASKS
            ]
            summary, seeds = [""] * 4, ""
            if len(of_task) == len(TASKS):
                seeds = str(min(map(len, of_task.values())))
                summary = [
                    f"{100 * _mean(of_task, 'accuracy'):.1f}",
                    f"{_mean(of_task, 'brier'):.3f}",
                    f"{_mean(of_task, 'train_seconds'):.0f} s",
                    f"{_mean(of_task, 'predict_ms'):.1f} ms",
                ]
            lines.append(f"| `{column}` | {' | '.join([*means, *summary, seeds])} |")
        lines.append("")
    return "\n".join(lines)


def _mean(of_task: dict[str, list[dict[str, Any]]], score: str) -> float:
    return fmean(fmean(each[score] for each in scores) for scores in of_task.values())


if __name__ == "__main__":
    run_or_print(__doc__, run, table, folders=("data", "models", "scratch"))
