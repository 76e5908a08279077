"""Processor time of evaluating a Python function, and of its report.

Run ``python -m dev.benchmarks.evaluation_time``. It runs ``temper.evaluate`` on generated texts of
fifteen words in two classes, with every perspective that supports functions and 1,000 resamples,
and builds the page. The times are processor seconds, because other work on the machine affects them
less than the clock.
"""

from __future__ import annotations

import argparse
import csv
import random
import tempfile
import time
from pathlib import Path

from rich.console import Console

import temper
from dev.benchmarks.record import write
from temper.report import build

WORDS = 15


def generated(path: Path, rows: int) -> None:
    """Write texts with random labels."""
    draws = random.Random(0)
    vocabulary = [f"word{number}" for number in range(5000)]
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["text", "label"])
        for _ in range(rows):
            text = " ".join(draws.choices(vocabulary, k=WORDS))
            lines.writerow([text, draws.choice(["negative", "positive"])])


def measure(rows: int, folder: Path) -> dict[str, float]:
    """Return the processor seconds of each part."""
    own = 0.0

    def predict(texts: list[str]) -> list[list[float]]:
        nonlocal own
        start = time.process_time()
        result = [[0.3, 0.7] if len(text) % 2 else [0.6, 0.4] for text in texts]
        own += time.process_time() - start
        return result

    source, out = folder / "rows.csv", folder / "evaluation"
    generated(source, rows)
    start = time.process_time()
    names = ["negative", "positive"]
    temper.evaluate(predict, str(source), out=out, gives="probabilities", label_names=names)
    evaluated = time.process_time()
    build(out)
    reported = time.process_time()
    return {
        "evaluate": evaluated - start - own,
        "report": reported - evaluated,
        "the function": own,
    }


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as folder:
        result = measure(rows, Path(folder))
    console = Console()
    for name, seconds in result.items():
        console.print(f"{name}: {seconds:.1f} processor seconds for {rows:,} rows")
    console.print(f"Written to {write('evaluation_time', {'rows': rows, 'seconds': result})}")


if __name__ == "__main__":
    main()
