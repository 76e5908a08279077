"""The types of all sets of docs/entities.md are those of CoNLL."""

from __future__ import annotations

import json
from pathlib import Path

from reproduction.entities import SETS, prepared


def types_of(file: Path) -> set[str]:
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return {tag.partition("-")[2] for row in rows for tag in row["ner_tags"] if tag != "O"}


def test_every_set_uses_the_tag_of_conll_for_organizations(data_dir: Path, tmp_path: Path) -> None:
    conll = types_of(prepared(data_dir, tmp_path, 500) / "train.jsonl")
    assert len(conll) == 4
    for name in SETS:
        assert types_of(tmp_path / f"{name}.jsonl") == conll, name
