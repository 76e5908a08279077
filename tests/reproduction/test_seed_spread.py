"""The spread over seeds of docs/seed-spread.md: interpolated weights, F-interval and table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.stats import f

from reproduction import seed_spread
from reproduction.seed_spread import COLUMNS, PLAIN, START


def test_all_weights_but_the_classifier_are_interpolated(tmp_path: Path) -> None:
    folders = tmp_path / "start", tmp_path / "run"
    for number, folder in enumerate(folders):
        folder.mkdir()
        tensors = {name: torch.full((2,), number * 2.0) for name in ("encoder.w", "classifier.w")}
        save_file(tensors, folder / "model.safetensors")
    seed_spread.interpolate(*folders)
    result = load_file(folders[1] / "model.safetensors")
    assert result["encoder.w"].tolist() == [1.0, 1.0]
    assert result["classifier.w"].tolist() == [2.0, 2.0]


def test_the_interval_of_a_ratio_is_that_of_the_f_test() -> None:
    value, low, high = seed_spread.ratio([0.0, 1.0, 2.0], [0.0, 2.0, 4.0])
    assert value == pytest.approx(0.5)
    assert f.cdf(value**2 / low**2, 2, 2) == pytest.approx(0.975)
    assert f.cdf(value**2 / high**2, 2, 2) == pytest.approx(0.025)


def test_the_table_compares_with_plain_fine_tuning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale = dict(zip(COLUMNS, (0.04, 0.02, 0.01), strict=True))
    lines = [
        {
            "seed": seed,
            "column": column,
            "accuracy": {"dev": 0.9, "imdb": 0.8 + seed * scale[column], "tweets": 0.8},
        }
        for seed in range(4)
        for column in COLUMNS
        # The last seed misses a column, so it does not count.
        if (seed, column) != (3, START)
    ]
    file = tmp_path / "runs.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    monkeypatch.setattr(seed_spread, "FILE", file)
    plain, start, _ = (line.split("|") for line in seed_spread.table().splitlines()[2:5])
    assert plain[1].strip() == PLAIN
    assert plain[5].strip() == "2.00"
    assert start[4].strip().startswith("-1.0 [")
    assert start[6].strip().startswith("0.50 [")
    assert "3 seeds" in seed_spread.table()
