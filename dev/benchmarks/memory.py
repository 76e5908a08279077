"""Peak live tensor bytes of one training step of each method, beyond weights and optimizer.

Run ``python -m dev.benchmarks.memory``. Weights, gradients and optimizer state are not counted;
activations, perturbations, masks and temporaries are. *Kept* are the bytes that stay from step to
step (a copy of the weights, a mask), relative to the bytes of the weights. The numbers are counted,
not sampled, so they do not depend on the machine's load, and one step is enough.
"""

from __future__ import annotations

import argparse

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils._pytree import tree_leaves

from dev.benchmarks.ledger import Ledger
from dev.benchmarks.record import write
from dev.benchmarks.workload import METHODS, Workload

TARGETS = {
    "uegr": 2.2,
    "uegr without mask": 2.2,
    "jacobian": 3.4,
    "jacobian part": 3.4,
    "jachess": 7.0,
    "jachess four-point": 4.6,
}


def measure(label: str) -> dict[str, int]:
    """Count one step of a method.

    Args:
        label: A key of ``METHODS``.

    Returns:
        Peak bytes of the forward and backward passes, peak bytes of the whole step with clipping
        and optimizer, and the bytes that stay from step to step.
    """
    workload = Workload(label)
    # The first step allocates the optimizer's state, which must not be counted.
    workload.step()
    known = [*workload.model.parameters(), *workload.model.buffers(), *workload.inputs.values()]
    known += [leaf for leaf in tree_leaves(workload.optimizer.state) if isinstance(leaf, Tensor)]
    workload.optimizer.zero_grad(set_to_none=True)
    with Ledger(known) as ledger:
        workload.passes()
        end_of_passes = len(ledger.events)
        gradients = [p.grad for p in workload.model.parameters() if p.grad is not None]
        workload.update()
    gradients += [p.grad for p in workload.model.parameters() if p.grad is not None]
    whole = ledger.peak(without=gradients)
    ledger.events = ledger.events[:end_of_passes]
    return {"passes": ledger.peak(without=gradients), "step": whole, "state": held(workload)}


def held(workload: Workload) -> int:
    """Count the bytes that a method keeps from step to step: copies of weights, masks."""
    leaves = tree_leaves(workload.stepper.state_dict())
    return sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Tensor))


def main() -> None:
    """Measure every method, print the table and write ``results/NAME.json``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--name", default="memory", help="name of the file in results/")
    arguments = parser.parse_args()
    chosen = ["plain", *(label for label in arguments.methods if label != "plain")]
    torch.set_num_threads(2)
    peaks = {label: measure(label) for label in chosen}
    weights = sum(tensor.nbytes for tensor in Workload("plain").model.parameters())
    ratios = {
        label: {
            "passes": results["passes"] / peaks["plain"]["passes"],
            "step": results["step"] / peaks["plain"]["step"],
            "state_over_weights": results["state"] / weights,
        }
        for label, results in peaks.items()
    }
    table = Table(title="Peak live tensor bytes above weights, gradients and optimizer state")
    table.add_column("method", no_wrap=True)
    columns = ("passes, MB", "over plain", "at most", "whole step, MB", "over plain", "kept")
    for column in columns:
        table.add_column(column, justify="right")
    for label, results in peaks.items():
        table.add_row(
            label,
            f"{results['passes'] / 1e6:.1f}",
            f"{ratios[label]['passes']:.2f}",
            f"{TARGETS[label]:.2f}" if label in TARGETS else "",
            f"{results['step'] / 1e6:.1f}",
            f"{ratios[label]['step']:.2f}",
            f"{ratios[label]['state_over_weights']:.2f}",
        )
    console = Console()
    console.print(table)
    result = {
        "workload": Workload.describe(),
        "peak_bytes": peaks,
        "over_plain": ratios,
        "at_most": TARGETS,
    }
    console.print(f"Written to {write(arguments.name, result)}")


if __name__ == "__main__":
    main()
