"""A study of one seed compares its models over examples; more seeds speak for themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from temper.report import table
from tests.study.test_schedule import study


def test_one_seed_is_paired_over_examples_until_there_are_more(
    tiny_model: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tiny corpus has fewer rows than a verdict needs.
    monkeypatch.setattr(table, "LEAST_ROWS", 1)
    out = tmp_path / "study"
    one, _ = study(tiny_model, tiny_data, out, seeds=(0,))
    kept = json.loads((out / "paired.json").read_text())
    assert kept["columns"]["short"]["seed"] == 0
    names = {entry["name"] for entry in kept["columns"]["short"]["scores"]}
    assert "accuracy" in names
    difference = one.comparison.row("task", "accuracy").cells["short"].difference
    assert difference is not None
    assert difference.low is not None
    assert difference.verdict in ("better", "worse", "inside the noise")
    assert difference.examples == one.comparison.row("task", "accuracy").cells["short"].examples[0]
    assert "over the examples of one seed" in one.comparison.answer

    study(tiny_model, tiny_data, out, seeds=(0,))
    assert json.loads((out / "paired.json").read_text()) == kept

    two, _ = study(tiny_model, tiny_data, out, seeds=(0, 1))
    assert not (out / "paired.json").exists()
    difference = two.comparison.row("task", "accuracy").cells["short"].difference
    assert difference is not None
    assert (difference.low, difference.verdict) == (None, "undecidable")
