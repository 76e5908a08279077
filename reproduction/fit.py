"""Compare `temper fit` with other ways to a classifier on twelve CSV files (docs/fit.md).

    python -m reproduction.fit run --data FOLDER --scratch FOLDER
    python -m reproduction.fit table --write docs/fit.md

A finished file is one line of ``reproduction/results/fit/runs.jsonl``.
"""

from __future__ import annotations

import csv
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np

import temper
from reproduction.document import run_or_print
from reproduction.kept import add_run, read_runs
from reproduction.which_model import lines_of
from temper.cli.screen import say
from temper.data.sources import load_examples, load_splits
from temper.functional.calibration import (
    brier_of_rows,
    fit_temperature,
    probabilities_of,
    scaled,
)
from temper.functional.intervals import mean_difference_interval
from temper.functional.resampling import FloatArray
from temper.study.alternatives import FROZEN, SETFIT, fit_alternative
from temper.study.fit import epochs_for
from temper.training.config import RunConfig

FILE: Final = Path("reproduction/results/fit/runs.jsonl")
FILES: Final = {
    "yelp_sentences": ("dev", "test", 200),
    "subj": ("all", "all", 200),
    "ag_news": ("train", "test", 300),
    "mr": ("all", "all", 500),
    "mpqa": ("all", "all", 500),
    "reviews_kitchen": ("test", "test", 500),
    "tweeteval_sentiment": ("dev", "test", 1000),
    "sst5": ("train", "test", 1000),
    "amazon_polarity10k": ("train", "test", 1000),
    "newsgroups20_mini": ("all", "all", 900),
    "cola": ("train", "dev", 2000),
    "tweeteval_offensive": ("train", "test", 5000),
}
"""Dataset -> the splits of the file's rows and of the test rows, and the rows of the file."""
TEST_ROWS, MAX_LENGTH, RESAMPLES = 1000, 128, 2000
MODEL, BUDGET = "minilm", "20m"
FIT, LINEAR, SETFIT_WAY, PLAIN = "fit", "linear", "setfit", "plain"
OTHERS: Final = (LINEAR, SETFIT_WAY, PLAIN)


def write_files(data: Path, folder: Path, name: str) -> tuple[Path, Path]:
    """Write the file that is given to all ways, and the test rows; no text is in both."""
    split, test_split, count = FILES[name]
    names = json.loads((data / name / "dataset.json").read_text(encoding="utf-8"))["label_names"]
    order = np.random.default_rng(0)
    test = [json.loads(line) for line in order.permutation(lines_of(data / name, test_split))]
    test = test[:TEST_ROWS]
    texts = {row["text"] for row in test}
    rows = [json.loads(line) for line in order.permutation(lines_of(data / name, split))]
    rows = [row for row in rows if row["text"] not in texts][:count]
    folder.mkdir(parents=True, exist_ok=True)
    files = folder / f"{name}.csv", folder / f"{name}-test.csv"
    for file, written in zip(files, (rows, test), strict=True):
        with file.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["text", "label"])
            writer.writerows([row["text"], names[row["label"]]] for row in written)
    return files


def run_file(name: str, data: Path, scratch: Path) -> dict[str, Any]:
    """Train in every way on one file and return the scores on its test rows."""
    file, test_file = write_files(data, scratch, name)
    settings: dict[str, Any] = {
        "model": MODEL,
        "data": {
            "source": str(file),
            "dev_fraction": 0.2,
            "drop_overlap": True,
            "max_length": MAX_LENGTH,
        },
        "method": {"name": "plain"},
    }
    plain = RunConfig.of(settings)
    splits = load_splits(plain.data)
    test = load_examples(str(test_file)).map_labels(splits.train.label_names or ())
    longer = RunConfig.of({**settings, "train": {"epochs": epochs_for(len(splits.train))}})
    folder = scratch / "run"

    def fitted() -> Any:
        result = temper.fit(
            str(file), models=MODEL, budget=BUDGET, out=folder, max_length=MAX_LENGTH
        )
        chosen.append(result.record["candidates"][0]["candidate"])
        return result.load().predictor

    chosen: list[str] = []
    ways: dict[str, Callable[[], Any]] = {
        FIT: fitted,
        LINEAR: lambda: fit_alternative(FROZEN, longer, splits.train, seed=0),
        SETFIT_WAY: lambda: fit_alternative(SETFIT, longer, splits.train, seed=0),
        PLAIN: lambda: temper.train(config=settings, out=folder, resume=False).load(),
    }
    accuracy, seconds = {}, {}
    losses: dict[str, FloatArray] = {}
    for way, train in ways.items():
        shutil.rmtree(folder, ignore_errors=True)
        begun = time.perf_counter()
        predictor = train()
        seconds[way] = round(time.perf_counter() - begun, 1)
        temperature = fit_temperature(
            splits.dev.labels or (), predictor.predict(splits.dev).logits
        ).value
        logits = predictor.predict(test).logits
        accuracy[way] = float((logits.argmax(1) == np.asarray(test.labels)).mean())
        probabilities = probabilities_of(scaled(logits, temperature))
        losses[way] = np.asarray(brier_of_rows(test.labels or (), probabilities))
    shutil.rmtree(folder, ignore_errors=True)
    return {
        "file": name,
        "rows": FILES[name][2],
        "test_rows": len(test),
        "chosen": chosen[0],
        "accuracy": accuracy,
        "brier": {way: round(float(loss.mean()), 6) for way, loss in losses.items()},
        "difference": {way: _ends(losses[FIT], losses[way]) for way in OTHERS},
        "seconds": seconds,
    }


def _ends(first: FloatArray, second: FloatArray) -> list[float | None]:
    interval = mean_difference_interval(first, second, resamples=RESAMPLES, seed=0)
    return [interval.low, interval.high]


def finished() -> dict[str, dict[str, Any]]:
    """Return the kept results by file."""
    return {line["file"]: line for line in read_runs(FILE)}


def run(data: Path, scratch: Path) -> None:
    """Run the files that have no result yet."""
    for name in FILES:
        if name in finished():
            continue
        say(f"{name}: {FILES[name][2]:,} rows")
        line = run_file(name, data, scratch)
        add_run(FILE, line)


def table() -> str:
    """Return the Brier scores of all files, and on how many of them `fit` has the lowest."""
    done = finished()
    if not done:
        return "Not run."
    lines = [
        "| File | Rows | `fit` | Linear | SetFit | Plain, defaults | Chosen by `fit` |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    best, worse = 0, []
    for name, (*_, rows) in FILES.items():
        if name not in done:
            lines.append(f"| {name} | {rows:,} | not run | | | | |")
            continue
        line = done[name]
        cells = [f"{line['brier'][FIT]:.3f}"]
        for way in OTHERS:
            low, high = line["difference"][way]
            # Without an interval all rows have the same scores: `fit` chose this way.
            interval = "same model" if low is None else f"{low:+.3f} to {high:+.3f}"
            cells.append(f"{line['brier'][way]:.3f} ({interval})")
            if low is not None and low > 0:
                worse.append(f"{name} ({way})")
        best += line["brier"][FIT] <= min(line["brier"].values())
        lines.append(f"| {name} | {rows:,} | {' | '.join(cells)} | {line['chosen']} |")
    means = [fmean(line["brier"][way] for line in done.values()) for way in (FIT, *OTHERS)]
    return "\n".join(
        [
            *lines,
            f"| mean of {len(done)} files | | {' | '.join(f'{mean:.3f}' for mean in means)} | |",
            "",
            f"`fit` has the lowest Brier score on {best} of {len(done)} files. It is "
            f"significantly worse on {len(worse)}{': ' + ', '.join(worse) if worse else ''}.",
        ]
    )


if __name__ == "__main__":
    run_or_print(__doc__, run, table)
