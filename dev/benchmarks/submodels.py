"""Divergence of sub-models by dropout layers and by dropout at the outputs of blocks.

Run ``python -m dev.benchmarks.submodels``. MiniLM is trained for 125 steps; then two passes of the
same rows drop different units. *Divergence* is half the symmetric KL divergence between the passes,
in nats; *loss* and *accuracy* are those of one pass. *Blocks* is the same network without its
dropout layers, like many decoders, whose sub-models drop outputs of blocks. A second table has
GPT-2 with random weights and different depths. It shows the cosine between the states of two passes
before the head: at 0.1 in all dropout layers, and without dropout layers at the default rate
(``temper.forward.submodels.BLOCK_DROPOUT``).
"""

from __future__ import annotations

import argparse
from statistics import fmean

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification, AutoTokenizer, GPT2Config

from dev.benchmarks.record import write
from dev.benchmarks.text_attack import trained
from dev.benchmarks.workload import minilm_folder, synthetic
from temper.data.corpus import review_corpus
from temper.data.examples import Examples
from temper.forward.submodels import SubModels
from temper.functional.losses import symmetric_kl
from temper.models.network import Network
from temper.models.passes import DropoutPlan
from temper.types import Batch

BATCH, RATE = 16, 1e-4
RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
DEPTHS = (6, 12, 24, 32)


class NoDropout(nn.Identity):
    """Replacement of a dropout layer; attention reads its rate."""

    p = 0.0


def without_dropout(model: nn.Module) -> nn.Module:
    """Replace every dropout layer by the identity."""
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


def two_passes(network: Network, batch: Batch, plan: DropoutPlan) -> tuple[Tensor, Tensor]:
    """Return the logits of two passes."""
    with torch.no_grad():
        first, second = network.logits(batch.repeat(2), dropout=plan, seed=plan.seed).chunk(2)
    return first, second


def measure(network: Network, batch: Batch, rate: float, *, draws: int) -> dict[str, float]:
    """Compare two passes at a rate; return means over draws of the masks."""
    measured: list[tuple[float, float, float]] = []
    for seed in range(draws):
        plan = DropoutPlan(seed=seed, copies=2, fixed=(rate, rate))
        first, second = two_passes(network, batch, plan)
        right = (first.argmax(-1) == batch.labels).double()
        apart, loss = symmetric_kl(first, second).mean(), cross_entropy(first, batch.labels)
        measured.append((float(apart), float(loss), float(right.mean())))
    means = map(fmean, zip(*measured, strict=True))
    return dict(zip(("divergence", "loss", "accuracy"), means, strict=True))


def decoder(blocks: int) -> nn.Module:
    """Return a GPT-2 with random weights and a rate of 0.1 in all dropout layers."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=5000, n_embd=256, n_head=4, n_layer=blocks, pad_token_id=0)
    return AutoModelForSequenceClassification.from_config(config).train()


def cosine(model: nn.Module, *, rate: float | None) -> float:
    """Return the mean cosine between two passes' states before the head, over rows.

    Args:
        model: A network.
        rate: Rate of all dropout layers; None uses the default of sub-models.
    """
    inputs = synthetic(5000, batch=32, tokens=32)
    batch, network, states = Batch.of(inputs), Network(model), []
    network.probe(batch)
    hook = model.score.register_forward_pre_hook(lambda _, given: states.append(given[0][:, -1]))
    submodels = SubModels() if rate is None else SubModels(adaptive="fixed", rates=(rate, rate))
    two_passes(network, batch, submodels.plan(network, None, seed=0))
    hook.remove()
    network.remove_hooks()
    first, second = states[-1].chunk(2)
    return float(torch.cosine_similarity(first, second).mean())


def main() -> None:
    """Measure both kinds of sites, print the table and write ``results/submodels.json``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--steps", type=int, default=125, help="training steps of 16 rows")
    parser.add_argument("--rows", type=int, default=256, help="rows to compare passes on")
    parser.add_argument("--draws", type=int, default=8, help="draws of the masks at each rate")
    options = parser.parse_args()
    console = Console()
    reviews = review_corpus(rows=BATCH * options.steps).train
    model = trained(reviews, console=console, batch=BATCH, rate=RATE).model
    batch = batch_of(review_corpus(eval_rows=options.rows).dev)
    measured: dict[str, dict[str, dict[str, float]]] = {}
    table = Table(title="Two passes of MiniLM under different masks")
    for column in ("sites", "rate", "divergence", "loss", "accuracy"):
        table.add_column(column, justify="left" if column == "sites" else "right")
    for sites, change in (("layers", lambda each: each), ("blocks", without_dropout)):
        network = Network(change(model).train())
        for rate in track(RATES, sites, console=console, transient=True):
            means = measure(network, batch, rate, draws=options.draws)
            measured.setdefault(sites, {})[f"{rate:g}"] = means
            table.add_row(sites, f"{rate:g}", *(f"{value:.3f}" for value in means.values()))
        network.remove_hooks()
    console.print(table)
    depths = Table(title="Cosine between two passes of GPT-2")
    for column in ("blocks", "0.1 in all layers", "without dropout layers"):
        depths.add_column(column, justify="right")
    cosines: dict[int, tuple[float, float]] = {}
    for blocks in track(DEPTHS, "depth", console=console, transient=True):
        layers = cosine(decoder(blocks), rate=0.1)
        cosines[blocks] = layers, cosine(without_dropout(decoder(blocks)), rate=None)
        depths.add_row(str(blocks), *(f"{value:.2f}" for value in cosines[blocks]))
    console.print(depths)
    console.print(f"Written to {write('submodels', {'sites': measured, 'cosines': cosines})}")


if __name__ == "__main__":
    main()
