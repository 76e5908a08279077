"""Run the comparison of docs/completions.md, methods on completions of a decoder, and print it.

    python -m reproduction.completions run --data FOLDER --models FOLDER --scratch FOLDER
    python -m reproduction.completions table --write docs/completions.md

A finished run is one line of ``reproduction/results/completions/runs.jsonl``; a stopped run
resumes from its last checkpoint.
"""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path
from typing import Final

import temper
from reproduction.document import run_or_print
from reproduction.gains import GAINS, gains_table
from reproduction.kept import add_run, read_runs
from reproduction.which_model import lines_of
from temper.checkpoints.folder import read_json
from temper.cli.screen import say

FILE: Final = Path("reproduction/results/completions/runs.jsonl")
ROWS, HELD_OUT = 1000, 300
SEEDS: Final = (0, 1, 2, 3, 4)
FEWEST_SEEDS: Final = 3
"""Seeds of each column from which on the table is printed; what is missing is named."""
COLUMNS: Final[dict[str, tuple[str, int]]] = {
    "plain": ("plain", 1),
    "embedding_noise": ("embedding_noise", 1),
    "r_drop": ("r_drop", 1),
    "at": ("at", 1),
    "plain_x2": ("plain", 2),
}
"""Column -> its method, and its epochs."""
COMPUTE: Final = {"embedding_noise": 1, "r_drop": 2, "at": 2}
"""Passes of a step over those of plain fine-tuning."""


def write_files(data: Path, folder: Path) -> None:
    """Write the first training rows, and the first test rows as held-out rows."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, split, rows in (("train", "train", ROWS), ("dev", "test", HELD_OUT)):
        lines = lines_of(data / "gsm8k", split)[:rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def run(data: Path, models: Path, scratch: Path) -> None:
    """Train what has no result yet, one seed of all columns before the next."""
    write_files(data, scratch / "data")
    for seed, (column, (method, epochs)) in product(SEEDS, COLUMNS.items()):
        if (column, seed) in {(line["column"], line["seed"]) for line in read_runs(FILE)}:
            continue
        say(f"{column}, seed {seed}")
        out = scratch / f"{column}-{seed}"
        temper.train(
            str(scratch / "data"),
            model=str(models / "smollm2"),
            method=method,
            out=out,
            seed=seed,
            lora=True,
            learning_rate=5e-4,
            epochs=epochs,
            batch_size=8,
            max_length=256,
            save_steps=25,
        )
        record = read_json(out / "run.json")
        line = {"column": column, "seed": seed, "loss": record["epochs"]["kept"]["dev"]}
        add_run(FILE, line)
        shutil.rmtree(out)


def table() -> str:
    """Return the results as Markdown."""
    values: dict[str, dict[str, dict[int, float]]] = {}
    for line in read_runs(FILE):
        by_seed = values.setdefault(line["column"], {}).setdefault("loss per token x 100", {})
        by_seed[line["seed"]] = 100 * line["loss"]
    seeds = {name: len(scores) for name, by_seed in values.items() for scores in by_seed.values()}
    if values.keys() != COLUMNS.keys() or min(seeds.values()) < FEWEST_SEEDS:
        return f"{len(read_runs(FILE))} of {len(COLUMNS) * len(SEEDS)} runs are finished."
    missing = [f"`{name}`: {n} seeds" for name, n in seeds.items() if n < len(SEEDS)]
    fewer = f" ({', '.join(missing)})" if missing else ""
    introduction = f"Means over {len(SEEDS)} seeds{fewer}."
    ordered = {name: values[name] for name in COLUMNS}
    return "\n".join([f"{introduction} {GAINS}", "", *gains_table(ordered, COMPUTE)])


if __name__ == "__main__":
    run_or_print(__doc__, run, table, folders=("data", "models", "scratch"))
