"""Compositions of methods from the command line to the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from temper.app.keywords import method_name
from temper.errors import SettingError
from tests.cli.calls import answer, call, refused
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
    record = answer("train", "--method", "r_drop + at", *options)
    assert record["method"] == "r_drop + at"
    settings = record["settings"]["method"]
    assert settings["name"] == "r_drop + at"
    assert settings["at"]["epsilon"] == 0.1
    assert settings["r_drop"]["weight"] == 1.0
    (log, _) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert {"loss/task", "loss/adversarial", "loss/divergence"} <= set(log)
    before = stamps(tmp_path / "run")
    again = call("train", "--method", "r_drop+at", *options)
    assert again.exit_code == 0, again.stderr
    assert "finished already" in again.stderr
    assert stamps(tmp_path / "run") == before
    other = call("train", "--method", "r_drop + at", *options, "--set", "method.r_drop.weight=2")
    refused(other, "method.r_drop.weight was 1.0 and is now 2.0")


def test_a_settings_file_holds_a_table_a_method_and_halves_are_options(
    tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        '[method]\nname = "r_drop + at"\n[method.r_drop]\nweight = 2\n', encoding="utf-8"
    )
    options = tiny(tiny_model, tiny_data, tmp_path / "file")
    settings = answer("train", "--config", config, *options)["settings"]["method"]
    assert settings["r_drop"]["weight"] == 2.0
    record = answer(
        "train", "--objective", "r_drop", "--rule", "uegr", "--set", "method.uegr.mask.alpha=0.5",
        *tiny(tiny_model, tiny_data, tmp_path / "halves"),
    )  # fmt: skip
    assert record["method"] == "r_drop.objective + uegr.rule"
    assert record["settings"]["method"]["uegr"]["mask"]["alpha"] == 0.5
    (log, _) = map(json.loads, (tmp_path / "halves" / "metrics.jsonl").read_text().splitlines())
    assert {"loss/divergence", "mask/kept"} <= set(log)
    assert "loss/adversarial" not in log


def test_a_comparison_of_compositions_is_reported_by_their_names(
    tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    options = (
        "compare", "--methods", "vanilla,r_drop + at",
        "--variant", "near=r_drop.objective + uegr.rule,method.uegr.mask.alpha=0.5",
        "--seeds", "0", "--perspectives", "task", "--set", "evaluate.bootstrap=0",
        *tiny(tiny_model, tiny_data, tmp_path / "study"),
    )  # fmt: skip
    found = answer(*options)
    assert found["columns"] == ["vanilla", "r_drop+at", "near"]
    runs = sorted((tmp_path / "study" / "runs").iterdir())
    assert [run.name.partition("-s0-")[0] for run in runs] == ["near", "r_drop+at", "vanilla"]
    assert all((run / "evaluation" / "rows.parquet").is_file() for run in runs)
    page = (tmp_path / "study" / "report.html").read_text(encoding="utf-8")
    assert "r_drop+at" in page
    before = stamps(tmp_path / "study" / "runs")
    assert answer(*options)["columns"] == found["columns"]
    assert stamps(tmp_path / "study" / "runs") == before


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--method", "at + uegr"), ("'at' and 'uegr' both claim the perturbation",)),
        (("--method", "at + at"), ("'at' stands twice",)),
        (("--method", "at + r_dorp"), ("Unknown method 'r_dorp'", "'r_drop'")),
        (("--method", "uegr.rul"), ("Unknown half of uegr 'rul'", "'rule'")),
        (
            ("--method", "at + r_drop", "--set", "method.epsilon=0.1"),
            ("`method.epsilon`", "method.NAME.KEY"),
        ),
        (("--method", "at", "--rule", "uegr"), ("--method", "--rule", "give either")),
        (("--objective", "uegr", "--rule", "uegr"), ("that is --method uegr",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_does_not_compose_is_one_error_before_any_work(
    tiny_model: Path, tiny_data: Path, tmp_path: Path, more: tuple[str, ...], words: tuple[str, ...]
) -> None:
    refused(call("train", *tiny(tiny_model, tiny_data, tmp_path / "run"), *more), *words)
    assert list(tmp_path.iterdir()) == []


def test_faults_of_all_columns_are_told_at_once(
    tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    options = tiny(tiny_model, tiny_data, tmp_path / "study")
    named = call("compare", "--methods", "vanila,at + r_dorp", "--variant", "x=uegr.rul", *options)
    refused(named, "'vanilla'", "'r_drop'", "'rule'")
    clashes = call(
        "compare", "--methods", "at + uegr", "--variant", "x=at,method.epsilon=-1", *options
    )
    refused(clashes, "both claim the perturbation", "`method.epsilon` must be >= 0")
    assert clashes.stderr.count("both claim") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("method", "objective", "rule", "expected"),
    [
        (None, None, None, None),
        ("uegr", None, None, "uegr"),
        (None, "uegr", None, "uegr.objective"),
        (None, None, "uegr", "uegr.rule"),
        (None, "r_drop+at", "uegr", "r_drop.objective + at.objective + uegr.rule"),
    ],
)
def test_halves_are_joined_to_a_name(
    method: str | None, objective: str | None, rule: str | None, expected: str | None
) -> None:
    assert method_name(method, objective, rule) == expected


@pytest.mark.parametrize("half", ["objective", "rule"])
def test_a_whole_method_and_a_half_are_not_given_together(half: str) -> None:
    halves = {"objective": None, "rule": None, half: "uegr"}
    with pytest.raises(SettingError, match=f"--method names a whole method and --{half} half"):
        method_name("at", **halves)
