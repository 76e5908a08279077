"""Time of the selective update's mask: by magnitude bucket, and by sorting.

Run ``python -m dev.benchmarks.mask_cost``. All three masks cover the same gradients, those of one
step of MiniLM in the encoder's blocks. A plain training step is timed for comparison.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from dev.benchmarks.record import write
from dev.benchmarks.workload import Workload
from reproduction.theorem import exact_ranks
from temper.functional.masks import keep_probability
from temper.methods.selection import Selective, SelectiveUpdate
from temper.seeding import Streams
from temper.types import Gradients

WARM_UP = 2
THREADS = 2
ALPHA, BETA = 0.6, 1.0


def ranks_by_argsort(values: Tensor) -> Tensor:
    """Rank magnitudes by sorting, with ties in any order."""
    order = values.abs().argsort()
    ranks = torch.empty_like(values)
    ranks[order] = torch.linspace(0, 1, len(values))
    return ranks


def masked_by(rank: Callable[[Tensor], Tensor], grads: Gradients, names: list[str]) -> Gradients:
    """Mask gradients by an exact global rank.

    Args:
        rank: [n] gradients to [n] ranks in [0, 1].
        grads: Gradients by name.
        names: The gradients that the mask covers.

    Returns:
        Gradients by name, ``m * g / p`` for those that the mask covers.
    """
    flat = torch.cat([grads[name].flatten() for name in names])
    p = keep_probability(rank(flat).float(), alpha=ALPHA, beta=BETA)
    flat = flat * torch.bernoulli(p) / p
    parts = flat.split([grads[name].numel() for name in names])
    return {
        **grads,
        **{name: part.view_as(grads[name]) for name, part in zip(names, parts, strict=True)},
    }


def candidates() -> tuple[dict[str, Callable[[Gradients], object]], Gradients, int]:
    """Return the timed functions, the gradients to mask, and the number of masked entries."""
    plain = Workload("plain")
    plain.step()
    plain.passes()
    rule = SelectiveUpdate(Selective(alpha=ALPHA, beta=BETA))
    params = plain.stepper.params
    grads = {name: grad.clone() for name, grad in params.gradients().items()}
    plain.stepper.discard()
    names = [name for name in rule.names(params) if name in grads]
    state = rule.init(params)
    timed: dict[str, Callable[[Gradients], object]] = {
        "plain training step": lambda _: plain.step(),
        "mask by bucket": lambda copy: rule.transform(copy, params, state, Streams(0)),
        "mask by argsort": lambda copy: masked_by(ranks_by_argsort, copy, names),
        "mask by exact mid-ranks": lambda copy: masked_by(exact_ranks, copy, names),
    }
    return timed, grads, sum(grads[name].numel() for name in names)


def main() -> None:
    """Time every mask, print the table and write ``results/mask_cost.json``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="timed calls of each")
    rounds = parser.parse_args().rounds
    torch.set_num_threads(THREADS)
    console = Console()
    timed, grads, entries = candidates()
    samples: dict[str, list[float]] = {label: [] for label in timed}
    order = random.Random(0)
    for number in track(range(WARM_UP + rounds), "rounds", console=console, transient=True):
        for label in order.sample(list(timed), len(timed)):
            # A copy, because a rule may change its argument; copying is not timed.
            copy = {name: grad.clone() for name, grad in grads.items()}
            start = time.perf_counter()
            timed[label](copy)
            elapsed = time.perf_counter() - start
            if number >= WARM_UP:
                samples[label].append(elapsed)
    medians = {label: statistics.median(seconds) for label, seconds in samples.items()}
    step = medians["plain training step"]
    table = Table(title=f"Mask of {entries / 1e6:.1f} M entries, median of {rounds} rounds")
    table.add_column("what", no_wrap=True)
    table.add_column("milliseconds", justify="right")
    table.add_column("over a plain step", justify="right")
    for label, seconds in medians.items():
        table.add_row(label, f"{seconds * 1e3:.1f}", f"{seconds / step:.2f}")
    console.print(table)
    result = {
        "workload": Workload.describe(),
        "entries": entries,
        "rounds": rounds,
        "medians": medians,
        "in_plain_steps": {label: seconds / step for label, seconds in medians.items()},
        "samples": samples,
    }
    console.print(f"Written to {write('mask_cost', result)}")


if __name__ == "__main__":
    main()
