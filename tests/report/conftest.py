"""Folders as docs/formats.md describes them, with numbers that can be worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from temper.display.cells import Comparison, Row

# Accuracy on dev by column and seed: uegr - plain is 0.03, 0.02, 0.04.
ACCURACY = {"plain": [0.80, 0.82, 0.84], "uegr": [0.83, 0.84, 0.88]}
# uegr - plain is -0.01, 0.02, -0.01, with mean 0.
IMDB = {"plain": [0.70, 0.72, 0.74], "uegr": [0.69, 0.74, 0.73]}
YELP = {"plain": [0.60, 0.62, 0.64], "uegr": [0.61, 0.64, 0.67]}
# uegr - plain is -0.04, -0.05, -0.06.
ECE = {"plain": [0.10, 0.12, 0.11], "uegr": [0.06, 0.07, 0.05]}
AUROC = {"plain": [0.90, 0.90, 0.90], "uegr": [0.92, 0.92, 0.95]}

PARAMETERS = ("radius", "radius_relative", "norm", "steps", "restarts", "sigma", "rate", "layer")


@dataclass
class Plan:
    """Say what a study folder holds; tests change single fields."""

    columns: list[str] = field(default_factory=lambda: ["plain", "uegr"])
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    model: str = "a/model"
    labels: list[str] = field(default_factory=lambda: ["negative", "positive"])
    shifts: list[str] = field(default_factory=lambda: ["imdb", "yelp"])
    anomaly: str = "trec"
    corrupted: bool = False
    notices: list[str] = field(default_factory=lambda: ["12 train rows are also in dev"])
    extra: Callable[[str, int], list[dict[str, Any]]] = lambda column, seed: []
    drop: Callable[[dict[str, Any], str, int], bool] = lambda score, column, seed: False


def row_of(comparison: Comparison, perspective: str, name: str, **key: Any) -> Row:
    """Return the one row with this perspective, score name, and other fields or parameters."""
    wanted = {"perspective": perspective, "name": name, **key}
    result = [
        row
        for row in comparison.rows
        if all(
            getattr(row.key, part, row.key.parameters.get(part)) == value
            for part, value in wanted.items()
        )
    ]
    assert len(result) == 1, f"Expected one row with {wanted}, found {len(result)}."
    return result[0]


def score(perspective: str, set_name: str, name: str, value: float | None, **more: Any) -> dict:
    """Return one entry of scores.json."""
    lower = name in ("ece_10", "ece_15", "brier", "nll", "fpr95", "mse", "drop", "attack_success")
    whole = {
        "perspective": perspective,
        "set": set_name,
        "condition": "clean",
        "parameters": {part: more.pop(part) for part in PARAMETERS if more.get(part) is not None},
        "name": name,
        "value": value,
        "n": 500,
        "low": None if value is None else value - 0.02,
        "high": None if value is None else value + 0.02,
        "higher_is_better": not lower,
    }
    return {**whole, **{part: more[part] for part in more if part not in PARAMETERS}}


def scores_of(plan: Plan, column: str, seed: int) -> list[dict[str, Any]]:
    """Return all scores of one run."""
    position = seed % 3
    source = column if column in ACCURACY else "uegr"
    accuracy = ACCURACY[source][position]
    made = [score("task", "dev", "accuracy", accuracy)]
    made.append(score("task", "dev", "macro_f1", accuracy - 0.01))
    for name, values in zip(plan.shifts, (IMDB, YELP), strict=False):
        made.append(score("shift", name, "accuracy", values[source][position]))
    for condition, steps in (("fgm", 1), ("pgd", 10)):
        for radius in (0.1, 0.25, 0.5):
            fall = radius * (0.6 if source == "uegr" else 0.9)
            kind = {"condition": condition, "radius": radius, "norm": "l2", "steps": steps}
            made.append(score("embedding_attack", "dev", "accuracy", accuracy - fall, **kind))
    for sigma in (0.1, 0.3):
        kind = {"condition": "noise", "sigma": sigma}
        made.append(score("embedding_noise", "dev", "accuracy", accuracy - sigma / 4, **kind))
    made.append(score("embedding_noise", "dev", "area", accuracy - 0.05, condition="noise"))
    for kind in ("random", "mask", "drop") if plan.corrupted else ():
        for rate in (0.05, 0.2):
            where = {"condition": kind, "rate": rate}
            made.append(score("token_corruption", "dev", "accuracy", accuracy - rate, **where))
        made.append(score("token_corruption", "dev", "area", accuracy - 0.08, condition=kind))
    for set_name in ["dev", *plan.shifts]:
        made.append(score("calibration", set_name, "ece_10", ECE[source][position]))
        made.append(score("calibration", set_name, "ece_15", ECE[source][position] + 0.005))
        made.append(score("calibration", set_name, "brier", 2.4 * ECE[source][position]))
        made.append(score("calibration", set_name, "nll", 4.1 * ECE[source][position]))
    made.append(score("anomaly", plan.anomaly, "auroc", AUROC[source][position]))
    made.append(score("anomaly", plan.anomaly, "aupr", AUROC[source][position] - 0.1))
    made.append(score("anomaly", plan.anomaly, "fpr95", 1 - AUROC[source][position]))
    made += plan.extra(column, seed)
    return [entry for entry in made if not plan.drop(entry, column, seed)]


def write_rows(path: Path, sets: Sequence[tuple[str, str]], *, seed: int = 0) -> None:
    """Write 40 rows a set: confidence climbs, and the first half is wrong every third time."""
    rows = []
    for perspective, name in sets:
        for index in range(40):
            confidence = 0.5 + index / 80
            wrong = (index + seed) % 3 == 0 and index < 20
            rows.append(
                {
                    "perspective": perspective,
                    "set": name,
                    "condition": "clean",
                    "parameters": "{}",
                    "row": f"{index:08x}",
                    "index": index,
                    "label": None if perspective == "anomaly" else float(not wrong),
                    "prediction": 1.0,
                    "probabilities": [1 - confidence, confidence],
                    "loss": None,
                }
            )
    kinds = {
        **dict.fromkeys(("perspective", "set", "condition", "parameters", "row"), pa.string()),
        **dict.fromkeys(("label", "prediction", "loss"), pa.float64()),
        "index": pa.int64(),
        "probabilities": pa.list_(pa.float64()),
    }
    schema = pa.schema([(name, kinds[name]) for name in rows[0]])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)


def write_evaluation(folder: Path, plan: Plan, column: str, seed: int) -> None:
    """Write scores.json and rows.parquet."""
    folder.mkdir(parents=True)
    sets = [("task", "dev"), *(("shift", name) for name in plan.shifts), ("anomaly", plan.anomaly)]
    write_rows(folder / "rows.parquet", sets, seed=seed)
    document = {
        "schema": 1,
        "model": plan.model,
        "task": {"kind": "classification", "metric": "accuracy", "labels": plan.labels},
        "truncated": {"dev": 0.125},
        "notices": ["12.5% of the rows of set 'dev' are cut to the model's length."],
        "scores": scores_of(plan, column, seed),
    }
    (folder / "scores.json").write_text(json.dumps(document))


def write_run(folder: Path, plan: Plan, column: str, seed: int) -> None:
    """Write a finished run with its evaluation."""
    write_evaluation(folder / "evaluation", plan, column, seed)
    document = {
        "schema": 1,
        "status": "finished",
        "key": f"{column[:4]}{seed}abcdef",
        "model": plan.model,
        "method": column,
        "seed": seed,
        "settings": {
            "method": {"name": column, "epsilon": 0.0 if column == "plain" else 0.025},
            "train": {"epochs": 3, "learning_rate": 2e-5},
            "data": {"source": "sst2"},
        },
        "task": {"kind": "classification", "metric": "accuracy", "labels": plan.labels},
        "data": {"train": {"rows": 2000, "hash": "ab12"}, "dev": {"rows": 500, "hash": "cd34"}},
        "notices": plan.notices,
        "truncated": 0.01,
        "versions": {"temper": "0.1.0", "torch": "2.13.0", "transformers": "5.23.0"},
        "times": {"train_seconds": 60.1, "step_seconds_median": 0.31, "steps": 40},
        "device": "cpu",
    }
    (folder / "run.json").write_text(json.dumps(document))
    logs = []
    for step in range(0, 40, 4):
        loss = 0.7 / (1 + step / 10) + 0.02 * ((step + seed) % 3)
        terms = {"loss": loss, "loss/task": loss * 0.9, "learning_rate": 2e-5}
        if column != "plain":
            terms["loss/consistency"] = loss * 0.2
        logs.append(json.dumps({"step": step, "epoch": step / 13, **terms}))
    (folder / "metrics.jsonl").write_text("\n".join(logs) + "\n")


def write_study(folder: Path, plan: Plan) -> Path:
    """Write a study with all its runs."""
    runs: dict[str, dict[str, str]] = {}
    for column in plan.columns:
        for seed in plan.seeds:
            where = f"runs/{column}-s{seed}-abc"
            write_run(folder / where, plan, column, seed)
            runs.setdefault(column, {})[str(seed)] = where
    document = {
        "schema": 1,
        "model": plan.model,
        "data": {"source": "sst2"},
        "shift": {name: f"data/{name}" for name in plan.shifts},
        "anomaly": {plan.anomaly: "data/anomaly"},
        "seeds": plan.seeds,
        "reference": plan.columns[0],
        "columns": [{"name": name, "method": name, "settings": {}} for name in plan.columns],
        "runs": runs,
        "cost": {
            name: {"step_seconds": 0.25 * (index + 1), "over_reference": index + 1.0}
            for index, name in enumerate(plan.columns)
        },
    }
    (folder / "study.json").write_text(json.dumps(document))
    return folder


@pytest.fixture
def plan() -> Plan:
    """Return the default plan: plain and uegr over three seeds."""
    return Plan()


@pytest.fixture
def make_study(tmp_path: Path) -> Callable[[Plan], Path]:
    """Return a function that writes a study and returns its folder."""
    return lambda plan: write_study(tmp_path / "study", plan)


@pytest.fixture
def study(make_study: Callable[[Plan], Path], plan: Plan) -> Path:
    """Return the folder of the default study."""
    return make_study(plan)


@pytest.fixture
def run(tmp_path: Path, plan: Plan) -> Path:
    """Return the folder of a single run."""
    write_run(tmp_path / "run", plan, "uegr", 0)
    return tmp_path / "run"


@pytest.fixture
def evaluation(tmp_path: Path, plan: Plan) -> Path:
    """Return the folder of a single evaluation."""
    write_evaluation(tmp_path / "evaluation", plan, "uegr", 0)
    return tmp_path / "evaluation"


TEXTS = pa.schema(
    [(name, pa.string()) for name in ("perspective", "set", "condition", "row")]
    + [("index", pa.int64()), ("number", pa.int64())]
    + [("text", pa.string()), ("text_pair", pa.string())]
)


def text(index: int, name: str = "dev") -> str:
    """Return the clean text of a row."""
    return f"example {index} of {name} is a good film, and then some"


def attacked_text(index: int, name: str = "dev") -> str:
    """Return the text after the character edits."""
    return text(index, name).replace("good", "g00d")


def add_attacks(
    evaluation: Path,
    *,
    embedding: Sequence[float] = (0.25,),
    recipes: Sequence[str] = ("characters",),
    rows: int = 40,
    say: Any = text,
    say_attacked: Any = attacked_text,
) -> Path:
    """Attack the first rows of dev: of each attack the rows with an even index become class 0.

    The clean rows all predict class 1; the label is 0 where ``conftest`` made the row wrong.
    """
    table = pq.read_table(evaluation / "rows.parquet")
    clean = [
        row
        for row in table.to_pylist()
        if (row["perspective"], row["set"], row["condition"]) == ("task", "dev", "clean")
    ][:rows]
    added: list[dict[str, Any]] = []
    texts: list[dict[str, Any]] = []
    for row in clean:
        at = {"set": "dev", "row": row["row"], "index": row["index"], "text_pair": None}
        kept = {"perspective": None, "condition": "clean", "text": say(row["index"])}
        texts.append({**at, **kept})
    attacks = [
        ("embedding_attack", "pgd", {"radius": radius, "norm": "l2", "steps": 5, "restarts": 1})
        for radius in embedding
    ]
    attacks += [("text_attack", recipe, {}) for recipe in recipes]
    for perspective, condition, more in attacks:
        for row in clean:
            broken = row["index"] % 2 == 0
            predicted = {"prediction": 0.0, "probabilities": [0.75, 0.25]} if broken else {}
            budget = {} if more else {"queries": 7 + row["index"], "changed": 0.125}
            where = {"perspective": perspective, "condition": condition}
            parameters = {"parameters": json.dumps(more, sort_keys=True)}
            added.append({**row, **where, **parameters, **budget, **predicted})
            if not more:
                at = {"set": "dev", "row": row["row"], "index": row["index"], "text_pair": None}
                texts.append({**at, **where, "text": say_attacked(row["index"])})
    schema = table.schema
    for name, kind in (("queries", pa.float64()), ("changed", pa.float64())):
        if name not in schema.names:
            schema = schema.append(pa.field(name, kind))
    every = [{name: row.get(name) for name in schema.names} for row in [*table.to_pylist(), *added]]
    pq.write_table(pa.Table.from_pylist(every, schema=schema), evaluation / "rows.parquet")
    numbered = [{**each, "number": each["index"] + 1} for each in texts]
    pq.write_table(pa.Table.from_pylist(numbered, schema=TEXTS), evaluation / "texts.parquet")
    return evaluation


def add_detectors(evaluation: Path, anomaly: str = "trec", *, rows: int = 40) -> Path:
    """Add the energy of dev and anomaly rows, and dev rows after temperature scaling."""
    table = pq.read_table(evaluation / "rows.parquet")
    schema = table.schema.append(pa.field("value", pa.float64()))
    every = [{**row, "value": None} for row in table.to_pylist()]
    nothing = dict.fromkeys(schema.names) | {"probabilities": [], "parameters": "{}"}
    for name, start in (("dev", 0.0), (anomaly, 10.0)):
        for index in range(rows):
            at = {"set": name, "row": f"{index:08x}", "index": index, "value": start + index}
            every.append({**nothing, "perspective": "anomaly", "condition": "energy", **at})
    for row in [one for one in every if (one["perspective"], one["set"]) == ("task", "dev")]:
        scaled = {"probabilities": [0.25, 0.75], "perspective": "calibration"}
        every.append({**row, **scaled, "condition": "temperature"})
    pq.write_table(pa.Table.from_pylist(every, schema=schema), evaluation / "rows.parquet")
    return evaluation


def robustness_scores(column: str, seed: int) -> list[dict[str, Any]]:
    """Return scores of text attacks, perturbations, groups and layers, for `Plan.extra`."""
    gain = 0.1 if column == "uegr" else 0.0
    made = []
    for index, recipe in enumerate(("characters", "swaps")):
        where = {"condition": recipe, "n": 40}
        made.append(score("text_attack", "dev", "accuracy", 0.4 - index / 10 + gain, **where))
        made.append(score("text_attack", "dev", "attack_success", 0.5 - gain, **where))
        made.append(score("text_attack", "dev", "changed_words", 0.2 + gain, **where))
    for name in ("typos", "lowercase"):
        made.append(score("worst_case", "dev", "accuracy", 0.7 + gain, condition=name))
    made.append(score("worst_case", "dev", "worst_case_accuracy", 0.6 + gain, condition="all"))
    for name, value in (("fiction", 0.8), ("travel", 0.7)):
        made.append(score("groups", "dev", "accuracy", value + gain, condition=name, n=20))
    made.append(score("groups", "dev", "worst_group", 0.7 + gain, condition="worst"))
    for layer in (1, 2, 3):
        where = {"condition": "cka", "layer": layer, "n": 8, "higher_is_better": None}
        made.append(score("representation", "dev", "cka", 0.9 - layer / 10 + gain, **where))
    return made


def attack_study(study: Path, *, detectors: bool = False, **more: Any) -> Path:
    """Attack every run of a study."""
    for evaluation in sorted(study.glob("runs/*/evaluation")):
        add_attacks(evaluation, **more)
        if detectors:
            add_detectors(evaluation)
    return study
