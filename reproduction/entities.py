"""Run the studies of docs/entities.md, UEGR on named entities, and print their table.

    python -m reproduction.entities run --data FOLDER --scratch FOLDER
    python -m reproduction.entities table --write docs/entities.md

`run` calls `temper.compare` for one seed after the other. It can be stopped and started again:
scores of finished seeds are kept in ``reproduction/results/entities``.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import temper
from reproduction.document import run_or_print
from reproduction.gains import GAINS, gains_table
from reproduction.which_model import lines_of
from temper.files import write_json

FOLDER = Path("reproduction/results/entities")
TYPES = {
    **dict.fromkeys(("person", "politician", "writer", "scientist"), "person"),
    **dict.fromkeys(("location", "country"), "location"),
    **dict.fromkeys(
        ("organisation", "politicalparty", "university", "corporation", "group"), "organisation"
    ),
}
"""CoNLL's type of each type of CrossNER and WNUT; all others are ``misc``."""
SETS = ("crossner_politics", "crossner_literature", "crossner_science", "wnut17")
RATES = (5e-5, 1e-4, 2e-4)
EPOCHS = {500: 10, 2000: 5}
SEEDS = (0, 1, 2, 3, 4)
COLUMNS: dict[str, dict[str, Any]] = {
    "plain": {"method": "plain"},
    "r_drop": {"method": "r_drop"},
    "uegr": {"method": "uegr"},
    "uegr_one_pass": {"method": {"name": "uegr", "preset": "one_pass"}},
}
COMPUTE = {"r_drop": 2, "uegr_one_pass": 2, "uegr": 3}
"""Passes of a step over those of plain fine-tuning, rounded up."""


def prepared(data: Path, scratch: Path, rows: int) -> Path:
    """Write CoNLL's first sentences for training, and every set in CoNLL's types."""
    folder = scratch / f"conll-{rows}"
    folder.mkdir(parents=True, exist_ok=True)
    names = ("train", "dev", "test")
    for name in names:
        result = _read(data / "conll2003", name)
        _write(folder / f"{name}.jsonl", result[:rows] if name == "train" else result[:1000])
    for name in SETS:
        split = "test" if list((data / name).glob("test.jsonl*")) else "dev"
        _write(scratch / f"{name}.jsonl", _read(data / name, split)[:600])
    return folder


def _read(folder: Path, split: str) -> list[dict[str, Any]]:
    names = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))["label_names"]
    rows = []
    for line in lines_of(folder, split):
        row = json.loads(line)
        tags = [names[tag] if isinstance(tag, int) else tag for tag in row["ner_tags"]]
        rows.append({"tokens": row["tokens"], "ner_tags": [_conll(tag) for tag in tags]})
    return rows


def _conll(tag: str) -> str:
    prefix, dash, kind = tag.partition("-")
    return prefix + dash + TYPES.get(kind, "misc") if dash else tag


def _write(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def study(
    folder: Path,
    scratch: Path,
    name: str,
    columns: dict[str, Any],
    seeds: tuple[int, ...],
    **more: Any,
) -> None:
    """Train and evaluate columns with the seeds whose scores are not kept yet."""
    kept = FOLDER / f"{name}.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    scores = kept_scores(name)
    for seed in sorted(set(seeds) - {line["seed"] for line in scores}):
        out = scratch / f"{name}-seed-{seed}"
        temper.compare(
            str(folder),
            model="minilm",
            methods=(),
            variants=columns,
            equal_compute=False,
            seeds=[seed],
            out=out,
            max_length=128,
            perspectives=["task", "shift"],
            evaluate={"bootstrap": 0},
            **more,
        )
        runs = json.loads((out / "study.json").read_text(encoding="utf-8"))["runs"]
        for column, by_seed in runs.items():
            file = out / by_seed[str(seed)] / "evaluation" / "scores.json"
            entries = json.loads(file.read_text(encoding="utf-8"))["scores"]
            values = {e["set"]: e["value"] for e in entries if e["name"] == "entity_f1"}
            scores.append({"column": column, "seed": seed, "f1": values})
        write_json(kept, {"scores": scores})


def kept_scores(name: str) -> list[dict[str, Any]]:
    """Return the scores of a study's finished seeds."""
    kept = FOLDER / f"{name}.json"
    if not kept.exists():
        return []
    scores: list[dict[str, Any]] = json.loads(kept.read_text(encoding="utf-8"))["scores"]
    return scores


def chosen(rows: int) -> dict[str, float]:
    """Return the learning rate of each method with the best F1 on the dev rows."""
    best: dict[str, tuple[float, float]] = {}
    for line in kept_scores(f"rates-{rows}"):
        column, _, rate = line["column"].partition("+")
        result = (line["f1"]["dev"] or 0.0, float(rate))
        best[column] = max(best.get(column, result), result)
    return {column: rate for column, (_, rate) in best.items()}


def with_compute(rates: dict[str, float], epochs: int) -> dict[str, Any]:
    """Return the columns of the final study: the methods, and plain fine-tuning at their cost."""
    columns = {
        name: {**settings, "train": {"learning_rate": rates[name], "epochs": epochs}}
        for name, settings in COLUMNS.items()
    }
    for times in sorted(set(COMPUTE.values())):
        train = {"learning_rate": rates["plain"], "epochs": epochs * times}
        columns[f"plain_x{times}"] = {"method": "plain", "train": train}
    return columns


def run(data: Path, scratch: Path) -> None:
    """Run all studies: for each size the rates with one seed, then all columns with five."""
    for rows, epochs in EPOCHS.items():
        folder = prepared(data, scratch, rows)
        by_rate = {
            f"{name}+{rate:g}": {**settings, "train": {"learning_rate": rate, "epochs": epochs}}
            for name, settings in COLUMNS.items()
            for rate in RATES
        }
        study(folder, scratch, f"rates-{rows}", by_rate, seeds=(0,))
        sets = {"conll_test": folder / "test.jsonl", **{n: scratch / f"{n}.jsonl" for n in SETS}}
        shift = {name: str(path) for name, path in sets.items()}
        columns = with_compute(chosen(rows), epochs)
        study(folder, scratch, f"final-{rows}", columns, seeds=SEEDS, shift=shift)


def values_of(rows: int) -> dict[str, dict[str, dict[int, float]]]:
    """Return the strict F1 in percent by column, set and seed; empty if no seed is finished."""
    values: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for line in kept_scores(f"final-{rows}"):
        own = {name: 100 * (value or 0.0) for name, value in line["f1"].items()}
        own["shift"] = fmean(own[name] for name in SETS)
        for name in ("conll_test", "shift", *SETS):
            heading = name.replace("_", " ")
            values[line["column"]][heading][line["seed"]] = own[name]
    return values


def table() -> str:
    """Return the results as Markdown."""
    lines = []
    for rows in EPOCHS:
        values = values_of(rows)
        if not values:
            continue
        rates = ", ".join(f"{name} {rate:g}" for name, rate in chosen(rows).items())
        done = len(values["plain"]["shift"])
        lines += [
            f"**{rows:,} sentences**, learning rates {rates}. Strict F1, mean over {done} of "
            f"{len(SEEDS)} seeds.{f' {GAINS}' if done > 1 else ''}",
            "",
            *gains_table(values, COMPUTE),
            "",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    run_or_print(__doc__, run, table)
