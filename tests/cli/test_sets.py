"""Adversarial sets, suites and groups through the commands, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.calls import answer

SUITE = """summary = "Of tests"
labels = ["negative", "positive"]
[adversarial.turned]
parts = { one = "shift.csv", two = "reviews@dev" }
[shift.gone]
path = "gone@test"
"""


def test_a_study_judges_on_a_suite_and_learns_from_its_own_training_rows(
    tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    suite = tmp_path / "own.toml"
    suite.write_text(SUITE, encoding="utf-8")
    out = tmp_path / "study"
    answer(
        "compare", "--model", tiny_model, "--data", tiny_data / "reviews", "--methods", "vanilla",
        "--seeds", "0", "--set", "train.max_steps=1", "--set", "train.device=cpu",
        "--max-length", "32", "--adversarial", f"made={tiny_data / 'shift.csv'}",
        "--anomaly", f"odd={tiny_data / 'anomaly.csv'}", "--suite", suite,
        "--data-root", tiny_data, "--perspectives", "task,adversarial,groups,anomaly",
        "--set", "evaluate.bootstrap=0", "--out", out,
    )  # fmt: skip
    plan = json.loads((out / "study.json").read_text(encoding="utf-8"))
    assert (plan["suite"], list(plan["missing"])) == ("own", ["gone"])
    assert list(plan["adversarial"]) == ["made", "turned"]
    (run,) = plan["runs"]["vanilla"].values()
    found = json.loads((out / run / "evaluation" / "scores.json").read_text(encoding="utf-8"))
    assert list(found["missing"]) == ["gone"]
    assert any("'gone' of suite 'own' is missing" in notice for notice in found["notices"])
    scored = {(score["perspective"], score["set"]): score["n"] for score in found["scores"]}
    assert (scored["adversarial", "made"], scored["adversarial", "turned"]) == (10, 22)
    groups = {
        score["condition"]: score["n"]
        for score in found["scores"]
        if score["perspective"] == "groups"
    }
    assert groups == {"one": 10, "two": 12, "worst": 22, "mean": 22}
    # Detectors that learn from ordinary rows have some: the run's own.
    assert "mahalanobis" in {score["condition"] for score in found["scores"]}
