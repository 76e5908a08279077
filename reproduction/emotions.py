"""Run the comparison of docs/emotions.md, UEGR with several labels per text, and print its table.

    python -m reproduction.emotions run --data FOLDER --scratch FOLDER
    python -m reproduction.emotions table --write docs/emotions.md

A finished run is one line of ``reproduction/results/emotions/runs.jsonl``.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import numpy as np

import temper
from reproduction.document import run_or_print
from reproduction.entities import COLUMNS, COMPUTE
from reproduction.gains import GAINS, gains_table
from reproduction.kept import add_run, read_runs
from reproduction.which_model import lines_of
from temper.calibration.thresholds import choose_thresholds, label_temperatures
from temper.cli.screen import say
from temper.data.sources import load_examples
from temper.evaluation.prediction import Prediction
from temper.functional.calibration import expected_calibration_error
from temper.functional.multi_label import label_f1, mean_average_precision, micro_f1

FILE: Final = Path("reproduction/results/emotions/runs.jsonl")
ROWS, HELD_OUT, EPOCHS, MAX_LENGTH = 2000, 1000, 5, 64
"""Training rows, rows that choose the learning rate and fit temperatures and thresholds, epochs."""
RATES: Final = (1e-4, 2e-4, 4e-4)
SEEDS: Final = (0, 1, 2, 3, 4)
SCORES: Final = {
    "macro_f1": "Macro-F1",
    "micro_f1": "Micro-F1",
    "map": "mAP",
    "ece": "Class-wise ECE",
    "brier": "Brier score",
}


def write_files(data: Path, folder: Path) -> None:
    """Write the training rows, the held-out rows and the test rows."""
    folder.mkdir(parents=True, exist_ok=True)
    dev = lines_of(data / "goemotions", "dev")
    parts = {
        "train": lines_of(data / "goemotions", "train")[:ROWS],
        "held_out": dev[:HELD_OUT],
        "test": dev[HELD_OUT:],
    }
    names = json.loads((data / "goemotions" / "dataset.json").read_text("utf-8"))["label_names"]
    for part, lines in parts.items():
        with (folder / f"{part}.jsonl").open("w", encoding="utf-8") as file:
            for row in map(json.loads, lines):
                row = {"text": row["text"], "labels": [names[label] for label in row["labels"]]}
                file.write(json.dumps(row) + "\n")


def scores(held_out: tuple[Any, Any], test: tuple[Any, Any], names: tuple[str, ...]) -> Any:
    """Return the scores of test rows, after temperatures and thresholds of the held-out rows.

    Args:
        held_out: Labels, 0 or 1, and logits, [n, L] each.
        test: The same of the test rows.
        names: The labels.
    """
    temperatures, _ = label_temperatures(*held_out, names)
    chances = [
        Prediction.of_labels(part[1] / temperatures).probabilities for part in (held_out, test)
    ]
    thresholds, _ = choose_thresholds(held_out[0], chances[0], names, rule="f1")
    truth, predicted = test[0], chances[1] > thresholds
    errors = [
        expected_calibration_error(applies, probabilities, bins=15)
        for applies, probabilities in zip(truth.T, chances[1].T, strict=True)
    ]
    return {
        "macro_f1": float(label_f1(truth, predicted)),
        "micro_f1": float(micro_f1(truth, predicted)),
        "map": float(mean_average_precision(truth, chances[1])),
        "ece": float(np.mean(errors)),
        "brier": float(((chances[1] - truth) ** 2).mean()),
    }


def run_one(folder: Path, method: Any, *, rate: float, epochs: int, seed: int) -> dict[str, Any]:
    """Train once and return the mAP of the held-out rows and the scores of the test rows."""
    out = folder / "run"
    shutil.rmtree(out, ignore_errors=True)
    result = temper.train(
        str(folder / "train.jsonl"),
        model="minilm",
        method=method,
        out=out,
        seed=seed,
        learning_rate=rate,
        epochs=epochs,
        max_length=MAX_LENGTH,
        dev_fraction=0.01,
    )
    predictor = result.load()
    names = predictor.label_names or ()
    parts = []
    for part in ("held_out", "test"):
        rows = load_examples(str(folder / f"{part}.jsonl")).map_labels(names)
        logits = predictor.predict(rows).logits
        parts.append((np.asarray(rows.labels, dtype=np.float64), np.asarray(logits)))
    shutil.rmtree(out)
    held_out, test = parts
    return {
        "held_out_map": float(mean_average_precision(*held_out)),
        **scores(held_out, test, names),
    }


def best_rates() -> dict[str, float]:
    """Return the learning rate of each method with the highest mAP on the held-out rows, seed 0."""
    best: dict[str, tuple[float, float]] = {}
    for line in read_runs(FILE):
        if line["seed"] == 0 and line["column"] in COLUMNS:
            result = line["held_out_map"], line["rate"]
            best[line["column"]] = max(best.get(line["column"], result), result)
    return {column: rate for column, (_, rate) in best.items()}


def run(data: Path, scratch: Path) -> None:
    """Run what has no result yet: every rate with one seed, then the chosen one with all seeds."""
    write_files(data, scratch)
    plans = [(name, 1, rate, 0) for name in COLUMNS for rate in RATES]
    _run_all(scratch, plans)
    rates = best_rates()
    columns = {**dict.fromkeys(COLUMNS, 1), **{f"plain_x{n}": n for n in set(COMPUTE.values())}}
    plans = [
        (name, times, rates[name.partition("_x")[0]], seed)
        for seed in SEEDS
        for name, times in columns.items()
    ]
    _run_all(scratch, plans)


def _run_all(scratch: Path, plans: list[tuple[str, int, float, int]]) -> None:
    done = {(line["column"], line["rate"], line["seed"]) for line in read_runs(FILE)}
    for column, times, rate, seed in plans:
        if (column, rate, seed) in done:
            continue
        say(f"{column}, learning rate {rate:g}, seed {seed}")
        method = COLUMNS[column.partition("_x")[0]]["method"]
        result = run_one(scratch, method, rate=rate, epochs=EPOCHS * times, seed=seed)
        line = {"column": column, "rate": rate, "seed": seed, **result}
        add_run(FILE, line)


def complete_runs() -> dict[str, dict[int, Any]]:
    """Return the results by column and seed; empty until all columns have all seeds."""
    rates = best_rates()
    runs: dict[str, dict[int, Any]] = {}
    for line in read_runs(FILE):
        if line["rate"] == rates.get(line["column"].partition("_x")[0]):
            runs.setdefault(line["column"], {})[line["seed"]] = line
    columns = (*COLUMNS, *(f"plain_x{times}" for times in sorted(set(COMPUTE.values()))))
    ended = all(len(runs.get(column, {})) == len(SEEDS) for column in columns)
    return {column: runs[column] for column in columns} if ended else {}


def table() -> str:
    """Return the results as Markdown."""
    complete, rates = complete_runs(), best_rates()
    if not complete:
        return f"{len(read_runs(FILE))} runs are finished; the table follows when all are."
    chosen = ", ".join(f"{name} {rates[name]:g}" for name in COLUMNS)
    values = {
        column: {
            heading: {seed: 100 * line[score] for seed, line in runs.items()}
            for score, heading in SCORES.items()
        }
        for column, runs in complete.items()
    }
    introduction = f"Learning rates: {chosen}. Percent, means over {len(SEEDS)} seeds. {GAINS}"
    return "\n".join([introduction, "", *gains_table(values, COMPUTE)])


if __name__ == "__main__":
    run_or_print(__doc__, run, table)
