"""Peak memory of one training step of each method, in live tensor bytes over what every step needs.

Run ``python -m benchmarks.memory``. Weights, gradients and optimiser state are left out; what remains is what
a method adds: activations, perturbations, masks, temporaries. The numbers are counted, not sampled, so they
do not depend on the machine's load, and one step is enough.
"""

from __future__ import annotations

import argparse
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.record import write
from benchmarks.workload import METHODS, Workload

TARGETS = {"uegr": 2.2, "uegr without mask": 2.2}


class Ledger(TorchDispatchMode):
    """Note when each tensor storage comes to life and when it is freed, during backward too.

    A storage is counted once, whatever views look at it. Storages that live before the block, such as the
    weights, never enter the ledger.

    Args:
        known: Tensors that live before the block.
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self.events: list[tuple[int, int]] = []
        self.seen: weakref.WeakKeyDictionary[torch.UntypedStorage, int] = (
            weakref.WeakKeyDictionary()
        )
        self.watches: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        for tensor in known:
            self.seen[tensor.untyped_storage()] = -1

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and enter the storages that it made."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.enter(leaf.untyped_storage())
        return result

    def enter(self, storage: torch.UntypedStorage) -> None:
        """Note a storage's birth, and arrange that its death is noted."""
        if storage in self.seen:
            return
        key, size = len(self.watches), storage.nbytes()
        self.seen[storage] = key
        self.events.append((key, size))
        # torch keeps one Python object per storage for as long as the storage lives, so the end of that
        # object is the end of the memory.
        self.watches[key] = weakref.ref(storage, lambda _: self.events.append((key, -size)))

    def peak(self, *, without: Iterable[Tensor] = (), first: int = 0) -> int:
        """Return the largest number of live bytes.

        Args:
            without: Tensors whose storages do not count, gradients for example.
            first: Event to start watching at; what lived before it counts as live.

        Returns:
            Bytes.
        """
        left_out = {self.seen.get(tensor.untyped_storage(), -1) for tensor in without}
        live = most = 0
        for number, (key, size) in enumerate(self.events):
            if key in left_out:
                continue
            live += size
            if number >= first:
                most = max(most, live)
        return most


def measure(label: str) -> dict[str, int]:
    """Count one step of a method.

    Args:
        label: A key of ``METHODS``.

    Returns:
        Peak bytes of the forward and backward passes, and of the whole step with clipping and optimiser.
    """
    workload = Workload(label)
    # The first step makes the optimiser's state, which then lives before the block.
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
    return {"passes": ledger.peak(without=gradients), "step": whole}


def main() -> None:
    """Count every method, print the table and write ``results/memory.json``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    chosen = ["vanilla", *(label for label in parser.parse_args().methods if label != "vanilla")]
    torch.set_num_threads(2)
    peaks = {label: measure(label) for label in chosen}
    ratios = {
        label: {name: bytes_ / peaks["vanilla"][name] for name, bytes_ in found.items()}
        for label, found in peaks.items()
    }
    table = Table(title="Peak live tensor bytes above weights, gradients and optimiser state")
    for column in ("method", "passes, MB", "over vanilla", "at most", "whole step, MB", "over vanilla"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for label, found in peaks.items():
        table.add_row(
            label,
            f"{found['passes'] / 1e6:.1f}",
            f"{ratios[label]['passes']:.2f}",
            f"{TARGETS[label]:.2f}" if label in TARGETS else "",
            f"{found['step'] / 1e6:.1f}",
            f"{ratios[label]['step']:.2f}",
        )
    console = Console()
    console.print(table)
    result = {
        "workload": Workload.describe(),
        "peak_bytes": peaks,
        "over_vanilla": ratios,
        "at_most": TARGETS,
    }
    console.print(f"Written to {write('memory', result)}")


if __name__ == "__main__":
    main()
