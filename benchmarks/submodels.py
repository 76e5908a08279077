"""How far apart sub-models are: by a model's own dropout layers, and at its blocks' outputs.

Run ``python -m benchmarks.submodels``. MiniLM learns the embedded reviews for a moment; then two
passes of the same rows drop other units. *Divergence* is half the symmetric KL between them in
nats, *loss* and *accuracy* are those of one such pass. *Blocks* is the same network without its
dropout layers, as many decoders come, where sub-models drop outputs of blocks, by
``temper.forward.submodels.BLOCK_RATE`` where a method sets no rate.
"""

from __future__ import annotations

import argparse
from statistics import fmean

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer

from benchmarks.record import write
from benchmarks.workload import CLIP, minilm, minilm_folder
from temper import Stepper
from temper.data.corpus import review_corpus
from temper.data.examples import Examples
from temper.functional.losses import symmetric_kl
from temper.methods import configure
from temper.models import DropoutPlan, Network
from temper.types import Batch

BATCH, RATE = 16, 1e-4
RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)


class NoDropout(nn.Identity):
    """What stands in a dropout layer's place; attention reads its rate."""

    p = 0.0


def without_dropout(model: nn.Module) -> nn.Module:
    """Replace every dropout layer by one that is none."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Dropout):
                setattr(parent, name, NoDropout())
    return model


def batch_of(examples: Examples) -> Batch:
    """Return all rows as one batch."""
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    inputs = tokenizer(list(examples.text), padding=True, return_tensors="pt")
    return Batch.of({**inputs, "labels": torch.tensor(examples.labels)})


def trained(console: Console, *, steps: int) -> nn.Module:
    """Fine-tune MiniLM for some steps."""
    torch.manual_seed(0)
    model = minilm().train()
    stepper = Stepper(model, configure("vanilla"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    rows = batch_of(review_corpus(rows=BATCH * steps).train)
    for step in track(range(steps), "training", console=console, transient=True):
        places = torch.arange(step * BATCH, (step + 1) * BATCH) % rows.size
        stepper.backward(rows.take(places))
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        stepper.step(optimizer)
    stepper.release()
    return model


def measure(network: Network, batch: Batch, rate: float, *, draws: int) -> dict[str, float]:
    """Compare two passes at a rate, and return the means over some draws of their masks."""
    found: list[tuple[float, float, float]] = []
    for seed in range(draws):
        plan = DropoutPlan(seed=seed, copies=2, fixed=(rate, rate))
        with torch.no_grad():
            one, other = network.logits(batch.repeat(2), dropout=plan, seed=seed).chunk(2)
        right = (one.argmax(-1) == batch.labels).double()
        apart, loss = symmetric_kl(one, other).mean(), cross_entropy(one, batch.labels)
        found.append((float(apart), float(loss), float(right.mean())))
    means = map(fmean, zip(*found, strict=True))
    return dict(zip(("divergence", "loss", "accuracy"), means, strict=True))


def main() -> None:
    """Measure both kinds of sites, print the table and write ``results/submodels.json``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--steps", type=int, default=125, help="training steps of 16 rows")
    parser.add_argument("--rows", type=int, default=256, help="rows to compare passes on")
    parser.add_argument("--draws", type=int, default=8, help="draws of the masks at each rate")
    options = parser.parse_args()
    torch.set_num_threads(2)
    console = Console()
    model = trained(console, steps=options.steps)
    batch = batch_of(review_corpus(eval_rows=options.rows).dev)
    found: dict[str, dict[str, dict[str, float]]] = {}
    table = Table(title="Two passes of MiniLM under different masks")
    for column in ("sites", "rate", "divergence", "loss", "accuracy"):
        table.add_column(column, justify="left" if column == "sites" else "right")
    for sites, change in (("layers", lambda each: each), ("blocks", without_dropout)):
        network = Network(change(model).train())
        for rate in track(RATES, sites, console=console, transient=True):
            each = measure(network, batch, rate, draws=options.draws)
            found.setdefault(sites, {})[f"{rate:g}"] = each
            table.add_row(sites, f"{rate:g}", *(f"{value:.3f}" for value in each.values()))
        network.release()
    console.print(table)
    console.print(f"Written to {write('submodels', {'sites': found})}")


if __name__ == "__main__":
    main()
