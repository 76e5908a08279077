"""Accuracy under the default embedding attack and under a stronger one.

Run ``python -m dev.benchmarks.attack_strength``. MiniLM is fine-tuned on SST-2 by `plain` and
`uegr` at two seeds. PGD then attacks dev rows within an l2 ball of 0.25: with the defaults, with 15
steps from 3 starts, and as in an earlier version (5 steps of half the radius, without early
stopping). The default was chosen on the first 100 dev rows; the table is for later rows.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from dev.benchmarks.record import write
from temper.checkpoints.checkpoint import Checkpoint
from temper.data.examples import Examples
from temper.data.settings import DataSettings
from temper.data.sources import load_splits
from temper.evaluation.attack import EmbeddingAttackSettings, PGDSettings, Target, attack
from temper.evaluation.loading import load_predictor
from temper.evaluation.predictor import RowBatch, Session
from temper.functional.norms import project, steepest

RADIUS = 0.25
SEEN = 100
"""Number of dev rows on which the default was chosen."""
BATCH = 32
METHODS, SEEDS = ("plain", "uegr"), (0, 1)


def attacks() -> dict[str, EmbeddingAttackSettings]:
    """Return the compared attacks, the default first."""
    default = PGDSettings()
    ways = {
        f"default: {default.steps} steps, {default.restarts} start": default,
        "15 steps, 3 starts": PGDSettings(steps=15, restarts=3),
    }
    return {
        name: EmbeddingAttackSettings(fgm=False, radii=(RADIUS,), pgd=pgd)
        for name, pgd in ways.items()
    }


def trained(method: str, seed: int, *, data: str, rows: int, folder: Path) -> Path:
    """Fine-tune MiniLM, unless the run exists already."""
    out = folder / f"{method}-{seed}"
    if not out.exists():
        command = [sys.executable, "-m", "temper", "train", "--model", "minilm", "--data", data]
        command += ["--method", method, "--seed", str(seed), "--rows", str(rows), "--out", str(out)]
        command += ["--set", "train.learning_rate=1e-4", "--set", "train.epochs=2"]
        subprocess.run(command, check=True)
    return out


def measured(run: Path, examples: Examples, *, console: Console) -> dict[str, dict[str, float]]:
    """Run every attack on some rows.

    Args:
        run: Folder of the model.
        examples: Labeled rows.
        console: Receives progress.

    Returns:
        For each attack the ``accuracy`` and the ``passes`` per row, with or without a gradient.
    """
    predictor = load_predictor(Checkpoint.of(run), batch_size=BATCH)
    labels = torch.tensor(examples.labels)
    right: dict[str, int] = {}
    passes: dict[str, int] = {}
    ways = attacks()
    with predictor.session() as session:  # type: ignore[attr-defined]
        parts = list(session.parts(examples))
        for part in track(parts, run.name, console=console, transient=True):
            for name, logits, rows in _logits(session, part, labels, ways):
                own = labels[part.indices].to(logits.device)
                right[name] = right.get(name, 0) + int((logits.argmax(dim=1) == own).sum())
                passes[name] = passes.get(name, 0) + rows
    total = len(examples)
    return {
        name: {"accuracy": right[name] / total, "passes": passes[name] / total} for name in right
    }


def _logits(
    session: Session, part: RowBatch, labels: Tensor, ways: dict[str, EmbeddingAttackSettings]
) -> Iterator[tuple[str, Tensor, int]]:
    """Yield each attack's name, the logits under it, and the number of rows it passed forward."""
    count = 0

    def forward(delta: Tensor, positions: Tensor) -> Tensor:
        nonlocal count
        count += len(positions)
        return session.logits(part.take(positions), delta=delta)

    embeddings = session.embeddings(part)
    own = labels[part.indices].to(embeddings.device)
    target = Target(forward, own, embeddings, part.batch.mask, part.rows)
    for name, settings in ways.items():
        count = 0
        clean, outcomes = attack(target, settings)
        for outcome in outcomes:
            yield name, outcome.logits, count
    yield "clean", clean, len(part.rows)
    count = 0
    yield "before: 5 steps, 1 start", _before(target, clean), count


def _before(target: Target, clean: Tensor) -> Tensor:
    """Run the earlier default: 5 steps of half the radius, without early stopping."""
    everyone = torch.arange(len(clean), device=clean.device)
    worst, delta = clean, torch.zeros_like(target.embeddings)
    radius = torch.full((len(clean), 1, 1), RADIUS, device=clean.device)
    for step in range(6):
        leaf = delta.detach().clone().requires_grad_(True)
        logits = target.forward(leaf, everyone)
        wrong = logits.argmax(dim=1) != target.labels
        worst = torch.where(wrong[:, None], logits.detach(), worst)
        others = logits.gather(1, 1 - target.labels[:, None]).squeeze(1)
        loss = others - logits.gather(1, target.labels[:, None]).squeeze(1)
        (gradient,) = torch.autograd.grad(loss.sum(), leaf)
        gradient = torch.where(target.movable.unsqueeze(-1), gradient, 0.0)
        reach = radius if step == 0 else radius / 2
        delta = project(delta + steepest(gradient, norm="l2") * reach, radius, norm="l2")
    return worst


def main() -> None:
    """Print the table and write dev/benchmarks/results/attack_strength.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="../shared/data/sst2", help="SST-2.")
    parser.add_argument("--train-rows", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=300, help="Number of attacked dev rows.")
    parser.add_argument("--first", type=int, default=SEEN, help="Index of the first one.")
    parser.add_argument("--runs", type=Path, default=Path("runs/attack_strength"))
    options = parser.parse_args()
    console, errors = Console(), Console(stderr=True)
    dev = load_splits(DataSettings(source=options.data)).dev
    examples = dev.select(range(options.first, min(options.first + options.rows, len(dev))))
    result: dict[str, dict[str, dict[str, Any]]] = {}
    for method in METHODS:
        for seed in SEEDS:
            run = trained(
                method, seed, data=options.data, rows=options.train_rows, folder=options.runs
            )
            result[f"{method}, seed {seed}"] = measured(run, examples, console=errors)
    table = Table(title=f"{len(examples)} rows, accuracy in % (passes per row)", box=None)
    names = list(dict.fromkeys(name for ways in result.values() for name in ways))
    for heading in ("run", *names):
        table.add_column(heading, justify="left" if heading == "run" else "right")
    for run_name, ways in result.items():
        cells = [f"{100 * ways[n]['accuracy']:.1f} ({ways[n]['passes']:.1f})" for n in names]
        table.add_row(run_name, *cells)
    console.print(table)
    content = {"radius": RADIUS, "rows": len(examples), "first": options.first, "runs": result}
    console.print(f"Written: {write('attack_strength', content)}")


if __name__ == "__main__":
    main()
