"""Fraction of padding in training batches, in random order and with similar lengths together.

Run ``python -m dev.benchmarks.padding --data FOLDER``; the folder has the datasets. Packing several
texts into one sequence saves only padding, so this fraction is an upper bound of its gain.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from dev.benchmarks.record import write
from temper.data.batches import LengthBucketSampler
from temper.data.encode import encode
from temper.data.sources import load_examples
from temper.models.hf import load_tokenizer
from temper.models.names import resolve

SETS = {"sst2": 64, "mrpc": 128, "mnli": 128, "ag_news": 128, "imdb": 512}
"""Dataset -> maximum length of a row."""


def padding(lengths: Sequence[int], *, batch_size: int) -> float:
    """Return the fraction of padding tokens, in [0, 1].

    Args:
        lengths: Tokens of each row, in the order of training.
        batch_size: Rows of a batch.
    """
    starts = range(0, len(lengths), batch_size)
    batches = [lengths[start : start + batch_size] for start in starts]
    return 1 - sum(lengths) / sum(len(batch) * max(batch) for batch in batches)


def main() -> None:
    """Measure every set, print the table and write ``results/padding.json``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("TEMPER_DATA"))
    parser.add_argument("--rows", type=int, default=5000, help="rows of each set")
    parser.add_argument("--batch-size", type=int, default=16)
    arguments = parser.parse_args()
    if arguments.data is None:
        parser.error("name the folder of the datasets: --data or TEMPER_DATA")
    tokenizer = load_tokenizer(resolve("minilm"), "minilm")
    table = Table(title=f"Padding in batches of {arguments.batch_size} rows")
    for heading in ("set", "tokens per row", "random order (%)", "similar lengths (%)"):
        table.add_column(heading, justify="left" if heading == "set" else "right")
    results = {}
    for name, longest in SETS.items():
        rows = load_examples(str(arguments.data / name), split="train")
        rows = rows.select(range(min(len(rows), arguments.rows)))
        lengths = encode(rows, tokenizer, max_length=longest, kind="unlabeled").lengths
        draws = torch.Generator().manual_seed(0)
        order = torch.randperm(len(lengths), generator=draws).tolist()
        sampler = LengthBucketSampler(lengths, batch_size=arguments.batch_size, seed=0)
        fractions = {
            label: padding([lengths[row] for row in indices], batch_size=arguments.batch_size)
            for label, indices in (("random", order), ("like_lengths", list(sampler)))
        }
        results[name] = {
            "max_length": longest,
            "mean_length": sum(lengths) / len(lengths),
            **fractions,
        }
        table.add_row(
            name,
            f"{results[name]['mean_length']:.0f}",
            *(f"{100 * fraction:.1f}" for fraction in fractions.values()),
        )
    console = Console()
    console.print(table)
    result = {"rows": arguments.rows, "batch_size": arguments.batch_size, "sets": results}
    console.print(f"Written to {write('padding', result)}")


if __name__ == "__main__":
    main()
