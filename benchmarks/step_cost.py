"""Time of one training step of each method over vanilla's, interleaved in one process.

Run ``python -m benchmarks.step_cost``. Every round takes one step of each method in a new order, so
that a slow minute of the machine falls on all of them; the figure is the median over the rounds,
and the ratio is between medians. Optimiser and clipping are in the time. Eight methods at a time,
each eight with plain steps of their own, so that the models fit into 6 GiB.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.record import write
from benchmarks.workload import BATCH, METHODS, STEPS, Workload

TARGETS = {
    "uegr without mask": 3.0,
    "uegr": 3.6,
    "r_at": 3.0,
    "roast": 2.5,
    "at": 2.0,
    "freelb": 3.0,
    "vat": 2.7,
    "smart without teacher": 2.7,
    "smart": 3.05,
    "r_drop": 1.95,
    "adv_weight": 2.05,
    "child_tuning_f": 1.3,
    "child_tuning_d": 1.1,
    "mixout": 1.4,
    "w_cons": 1.1,
    "jacobian": 2.6,
    "jacobian part": 2.6,
    "jachess": 4.8,
    "jachess four-point": 3.6,
    "jachess every 4": 2.0,
}
WARM_UP = 3
TOGETHER = 8
THREADS = 2


def rounds_of(
    labels: list[str], *, rounds: int, console: Console, batch: int = BATCH
) -> dict[str, list[float]]:
    """Time interleaved steps.

    Args:
        labels: Keys of ``METHODS``.
        rounds: Timed steps of each method.
        console: Where progress goes.
        batch: Rows of a step.

    Returns:
        Seconds of every timed step, by label, round by round.
    """
    workloads = {label: Workload(label, batch=batch) for label in labels}
    samples: dict[str, list[float]] = {label: [] for label in labels}
    order = random.Random(0)
    for number in track(range(WARM_UP + rounds), "rounds", console=console, transient=True):
        for label in order.sample(labels, len(labels)):
            start = time.perf_counter()
            workloads[label].sample()
            elapsed = (time.perf_counter() - start) / STEPS.get(label, 1)
            if number >= WARM_UP:
                samples[label].append(elapsed)
    return samples


def summary(samples: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """Reduce samples to medians and ratios over vanilla.

    Args:
        samples: Seconds by label; the n-th samples of all labels belong to one round.

    Returns:
        By label: ``median`` in seconds, ``over_vanilla`` as the ratio of medians, and
        ``middle_half``, the quartiles of the ratio round by round, which say how sure it is.
    """
    base = statistics.median(samples["vanilla"])
    found = {}
    for label, seconds in samples.items():
        beside = samples["vanilla"][: len(seconds)]
        paired = sorted(own / other for own, other in zip(seconds, beside, strict=True))
        quartiles = statistics.quantiles(paired, n=4) if len(paired) > 1 else paired * 3
        found[label] = {
            "median": statistics.median(seconds),
            "over_vanilla": statistics.median(seconds) / base,
            "middle_half": [quartiles[0], quartiles[2]],
            "at_most": TARGETS.get(label),
        }
    return found


def main() -> None:
    """Time every method, print the table and write ``results/NAME.json``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=40, help="timed steps of each method")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--batch", type=int, default=BATCH, help="rows of a step")
    parser.add_argument("--name", default="step_cost", help="of the file under results/")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    console = Console()
    labels = ["vanilla", *(label for label in arguments.methods if label != "vanilla")]
    samples: list[dict[str, list[float]]] = []
    found: dict[str, dict[str, Any]] = {}
    for first in range(1, max(len(labels), 2), TOGETHER):
        group = ["vanilla", *labels[first : first + TOGETHER]]
        samples.append(
            rounds_of(group, rounds=arguments.rounds, console=console, batch=arguments.batch)
        )
        found = {**summary(samples[-1]), **found}
        # A stepper and its model refer to each other.
        gc.collect()
    found = {label: found[label] for label in labels}
    table = Table(title=f"One training step, median of {arguments.rounds} interleaved rounds")
    for column in ("method", "milliseconds", "over vanilla", "middle half", "at most"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for label, row in found.items():
        low, high = row["middle_half"]
        table.add_row(
            label,
            f"{row['median'] * 1e3:.1f}",
            f"{row['over_vanilla']:.2f}",
            f"{low:.2f} to {high:.2f}",
            f"{row['at_most']:.2f}" if row["at_most"] else "",
        )
    console.print(table)
    result = {
        "workload": Workload.describe(arguments.batch),
        "rounds": arguments.rounds,
        "methods": found,
        "samples": samples,
    }
    console.print(f"Written to {write(arguments.name, result)}")


if __name__ == "__main__":
    main()
