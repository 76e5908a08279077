"""Attacked rows and their texts, added to an evaluation that `conftest` wrote."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.report.conftest import score

TEXTS = pa.schema(
    [(name, pa.string()) for name in ("perspective", "set", "condition", "row")]
    + [("index", pa.int64()), ("text", pa.string()), ("text_pair", pa.string())]
)


def text(index: int, name: str = "dev") -> str:
    """Return the clean text of a row."""
    return f"example {index} of {name} is a good film, and then some"


def attacked_text(index: int, name: str = "dev") -> str:
    """Return what the character edits made of it."""
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
            answer = {"prediction": 0.0, "probabilities": [0.75, 0.25]} if broken else {}
            budget = {} if more else {"queries": 7 + row["index"], "changed": 0.125}
            where = {"perspective": perspective, "condition": condition}
            parameters = {"parameters": json.dumps(more, sort_keys=True)}
            added.append({**row, **where, **parameters, **budget, **answer})
            if not more:
                at = {"set": "dev", "row": row["row"], "index": row["index"], "text_pair": None}
                texts.append({**at, **where, "text": say_attacked(row["index"])})
    schema = table.schema
    for name, kind in (("queries", pa.float64()), ("changed", pa.float64())):
        if name not in schema.names:
            schema = schema.append(pa.field(name, kind))
    every = [{name: row.get(name) for name in schema.names} for row in [*table.to_pylist(), *added]]
    pq.write_table(pa.Table.from_pylist(every, schema=schema), evaluation / "rows.parquet")
    pq.write_table(pa.Table.from_pylist(texts, schema=TEXTS), evaluation / "texts.parquet")
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
    for place, recipe in enumerate(("characters", "swaps")):
        where = {"condition": recipe, "n": 40}
        made.append(score("text_attack", "dev", "accuracy", 0.4 - place / 10 + gain, **where))
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
