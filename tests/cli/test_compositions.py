"""Compositions of methods from the command line to the report."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.calls import call, json_output, refused, succeed
from tests.cli.test_commands import stamps


def tiny(model: Path, data: Path, out: Path) -> tuple[object, ...]:
    return (
        "--model", model, "--data", data / "reviews", "--set", "train.max_steps=2",
        "--max-length", 32, "--device", "cpu", "--out", out,
    )  # fmt: skip


def test_a_composition_is_trained_recorded_and_recognised_however_it_is_spaced(
    tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    options = (*tiny(tiny_model, tiny_data, tmp_path / "run"), "--set", "method.at.epsilon=0.1")
    record = json_output("train", "--method", "r_drop + at", *options)
    assert record["method"] == "r_drop + at"
    settings = record["settings"]["method"]
    assert settings["name"] == "r_drop + at"
    assert settings["at"]["epsilon"] == 0.1
    assert settings["r_drop"]["weight"] == 1.0
    (log, _) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert {"loss/task", "loss/adversarial", "loss/divergence"} <= set(log)
    before = stamps(tmp_path / "run")
    again = succeed("train", "--method", "r_drop+at", *options)
    assert "Up to date" in again.stderr
    assert stamps(tmp_path / "run") == before
    other = call("train", "--method", "r_drop + at", *options, "--set", "method.r_drop.weight=2")
    refused(other, "method.r_drop.weight: 1.0 -> 2.0")


def test_a_settings_file_has_one_table_per_method(
    tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        '[method]\nname = "r_drop + at"\n[method.r_drop]\nweight = 2\n', encoding="utf-8"
    )
    options = tiny(tiny_model, tiny_data, tmp_path / "file")
    settings = json_output("train", "--config", config, *options)["settings"]["method"]
    assert settings["r_drop"]["weight"] == 2.0
