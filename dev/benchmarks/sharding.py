"""Bytes of each process with sharded weights (FSDP2), relative to a single process.

Run ``torchrun --nproc-per-node 2 -m dev.benchmarks.sharding``. A BERT of 110 million random weights
takes two steps of a method with AdamW; then every process counts the bytes of its weights,
gradients, optimizer states and of the state of the method. They do not depend on the machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils._pytree import tree_leaves

from dev.benchmarks.record import write
from dev.benchmarks.workload import CLIP, LEARNING_RATE, bert, synthetic
from temper import Stepper
from temper.methods import configure
from temper.training.sharding import shard

BATCH, TOKENS = 2, 16
AT_MOST = 0.6
"""Allowed bytes of each of two processes, relative to a single process."""


def held(tensors: Iterable[Any]) -> int:
    """Count the bytes of tensors in this process; of sharded tensors only its rows."""
    return sum(
        (tensor.to_local() if hasattr(tensor, "to_local") else tensor).nbytes
        for tensor in tensors
        if isinstance(tensor, Tensor)
    )


def whole(tensors: Iterable[Any]) -> int:
    """Count the bytes of whole tensors."""
    return sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))


def kept(method: str) -> dict[str, tuple[int, int]]:
    """Take two steps with sharded weights.

    Args:
        method: Name of the method.

    Returns:
        Kind -> bytes in this process, and bytes of a single process.
    """
    torch.manual_seed(0)
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model = shard(bert(layers=12, width=768, heads=12).train())
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    stepper = Stepper(model, configure(method), seed=0, rank=rank, ranks=ranks)
    inputs = synthetic(30_000, batch=BATCH, tokens=TOKENS)
    stepper.prepare([inputs])
    stepper.begin_epoch(0)
    for _ in range(2):
        optimizer.zero_grad(set_to_none=True)
        stepper.backward(inputs)
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        stepper.step(optimizer)
    weights = list(model.parameters())
    gradients = [weight.grad for weight in weights]
    states = tree_leaves(list(optimizer.state.values()))
    # The state of a method is local already; its checkpoint has the whole state.
    own = stepper.params.start.values(), tree_leaves(stepper.state)
    return {
        "weights": (held(weights), whole(weights)),
        "gradients": (held(gradients), whole(gradients)),
        "optimizer": (held(states), whole(states)),
        "method": (sum(map(held, own)), whole(tree_leaves(stepper.state_dict()))),
    }


def main() -> None:
    """Count in every process, print the largest fractions and write ``results/sharding.json``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--methods", nargs="+", default=["uegr", "smart"])
    methods = parser.parse_args().methods
    torch.distributed.init_process_group("gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    result: dict[str, Any] = {"processes": ranks, "at_most": AT_MOST, "shares": {}}
    table = Table(title=f"Bytes of one of {ranks} processes over those of a single process")
    for name in ("method", "weights", "gradients", "optimizer", "state of the method"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for method in methods:
        mine = kept(method)
        most = torch.tensor([own for own, _ in mine.values()])
        torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
        # The counters of a method are not sharded.
        fractions = {
            kind: own / alone if alone > mine["weights"][1] / 100 else None
            for (kind, (_, alone)), own in zip(mine.items(), most.tolist(), strict=True)
        }
        result["shares"][method] = fractions
        result["bytes"] = mine["weights"][1]
        cells = ("" if fraction is None else f"{fraction:.3f}" for fraction in fractions.values())
        table.add_row(method, *cells)
    if rank == 0:
        console = Console()
        console.print(table)
        console.print(f"Written to {write('sharding', result)}")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
