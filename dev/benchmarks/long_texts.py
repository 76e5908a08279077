"""Accuracy of MiniLM on IMDB with long texts truncated or split into windows, by seed.

Run ``python -m dev.benchmarks.long_texts --data FOLDER``; the folder has ``imdb``. Plain
fine-tuning uses 500 rows and windows of 128 tokens; all runs are evaluated on the same test rows. A
run that was trained on truncated texts is evaluated on truncated texts and on windows.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import temper
from dev.benchmarks.record import write
from temper.checkpoints.checkpoint import Checkpoint
from temper.data.examples import Examples
from temper.data.sources import load_examples
from temper.evaluation.blocks import labels_of
from temper.evaluation.loading import load_predictor
from temper.evaluation.settings import PredictorSettings

LENGTH, STRIDE = 128, 32


def accuracy(run: Path, rows: Examples, *, windows: bool) -> float:
    """Return the accuracy of a run."""
    given: dict[str, Any] = {"stride": STRIDE} if windows else {"stride": 0, "max_windows": 1}
    settings = PredictorSettings(device="cpu", **given)
    predictor = load_predictor(Checkpoint.of(run), settings=settings)
    return float((predictor.predict(rows).prediction == labels_of(rows)).mean())


def main() -> None:
    """Train and evaluate every run, print the table and write ``results/long_texts.json``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("TEMPER_DATA"))
    parser.add_argument("--rows", type=int, default=500, help="training rows")
    parser.add_argument("--test-rows", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=float, default=1)
    arguments = parser.parse_args()
    if arguments.data is None:
        parser.error("name the folder of the datasets: --data or TEMPER_DATA")
    torch.set_num_threads(1)
    source = str(arguments.data / "imdb")
    test = load_examples(source, split="test").sample(arguments.test_rows, seed=0)
    fractions: dict[str, list[float]] = {"cut, cut": [], "cut, windows": [], "windows, windows": []}
    seconds: dict[str, list[float]] = {"cut": [], "windows": []}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seeds):
            for kind, stride in (("cut", None), ("windows", STRIDE)):
                start, out = time.perf_counter(), Path(folder) / f"{kind}-{seed}"
                temper.train(
                    source,
                    model="minilm",
                    rows=arguments.rows,
                    max_length=LENGTH,
                    stride=stride,
                    epochs=arguments.epochs,
                    learning_rate=1e-4,
                    seed=seed,
                    device="cpu",
                    train={"evaluate": "off"},
                    out=out,
                )
                seconds[kind].append(time.perf_counter() - start)
                if kind == "cut":
                    fractions["cut, cut"].append(accuracy(out, test, windows=False))
                fractions[f"{kind}, windows"].append(accuracy(out, test, windows=True))
    table = Table(title=f"Accuracy on {len(test)} rows of IMDB, {arguments.rows} training rows (%)")
    for heading in ("training, evaluation", *(f"seed {seed}" for seed in range(arguments.seeds))):
        table.add_column(heading)
    table.add_column("mean", justify="right")
    for name, each in fractions.items():
        table.add_row(
            name, *(f"{100 * fraction:.1f}" for fraction in (*each, float(np.mean(each))))
        )
    console = Console()
    console.print(table)
    given = {"rows": arguments.rows, "test_rows": len(test), "epochs": arguments.epochs}
    result = {
        **given,
        "length": LENGTH,
        "stride": STRIDE,
        "accuracy": fractions,
        "seconds": seconds,
    }
    console.print(f"Written to {write('long_texts', result)}")


if __name__ == "__main__":
    main()
