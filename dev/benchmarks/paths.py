"""Time of a step in bf16 and of a compiled model, relative to fp32.

Run ``python -m dev.benchmarks.paths``. Steps of plain fine-tuning and of UEGR are interleaved. The
time of the first steps, during which the model is compiled, is a separate column. The compiled
model runs in a `Stepper`, because `RobustTrainer` refuses ``torch_compile``.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dev.benchmarks.record import write
from dev.benchmarks.step_cost import THREADS
from dev.benchmarks.workload import Workload, minilm

METHODS = ("plain", "uegr without mask")
PLAIN, BF16, COMPILED = "fp32", "bf16", "fp32, compiled"
WARM_UP = 3


def workload(method: str, path: str) -> Workload:
    """Return the workload of a method on MiniLM."""
    model: Any = minilm()
    return Workload(
        method,
        model=torch.compile(model) if path == COMPILED else model,
        bf16=path == BF16,
    )


def main() -> None:
    """Time every path of every method, print the table and write ``results/paths.json``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=21, help="timed steps of each")
    rounds = parser.parse_args().rounds
    torch.set_num_threads(THREADS)
    console = Console()
    first: dict[tuple[str, str], float] = {}
    samples: dict[tuple[str, str], list[float]] = {}
    works = {}
    for key in ((method, path) for method in METHODS for path in (PLAIN, BF16, COMPILED)):
        works[key], start = workload(*key), time.perf_counter()
        for _ in range(WARM_UP):
            works[key].step()
        first[key], samples[key] = time.perf_counter() - start, []
    order = random.Random(0)
    for _ in track(range(rounds), "rounds", console=console, transient=True):
        for key in order.sample(list(works), len(works)):
            start = time.perf_counter()
            works[key].step()
            samples[key].append(time.perf_counter() - start)
    table = Table(title=f"One training step of MiniLM, median of {rounds} interleaved rounds")
    for column in ("method", "path", "milliseconds", "over fp32", f"first {WARM_UP} steps, s"):
        table.add_column(column, justify="left" if column in ("method", "path") else "right")
    over = {}
    for (method, path), seconds in samples.items():
        reference = statistics.median(samples[method, PLAIN])
        median = statistics.median(seconds)
        over[f"{method}, {path}"] = median / reference
        table.add_row(
            method,
            path,
            f"{median * 1e3:.1f}",
            f"{median / reference:.2f}",
            f"{first[method, path]:.1f}",
        )
    console.print(table)
    result = {
        "workload": Workload.describe(),
        "rounds": rounds,
        "over_fp32": over,
        "first_seconds": {", ".join(key): seconds for key, seconds in first.items()},
        "samples": {", ".join(key): seconds for key, seconds in samples.items()},
    }
    console.print(f"Written to {write('paths', result)}")


if __name__ == "__main__":
    main()
