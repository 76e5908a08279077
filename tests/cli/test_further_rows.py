"""Unlabeled texts, suites and adversarial sets in commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.calls import json_output, succeed
from tests.cli.tiny_project import sentences, write_csv
from tests.training.alternating import NAME, alternating_registered


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    with alternating_registered():
        yield


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "data" / "pool.csv", sentences(12, thing="it"))


def test_a_training_reads_unlabeled_text_up_to_the_requested_rows(
    tiny_model: Path, tiny_data: Path, tmp_path: Path, pool: Path
) -> None:
    result = succeed(
        "train", "--model", tiny_model, "--data", tiny_data / "reviews", "--device", "cpu",
        "--set", "train.epochs=1", "--set", "train.batch_size=20", "--method", NAME,
        "--set", f"data.unlabeled={pool}", "--set", "data.unlabeled_rows=5",
        "--out", tmp_path / "run", "--json",
    )  # fmt: skip
    assert f"5 rows of unlabeled text from {pool}" in " ".join(result.stderr.split())
    record = json.loads(result.stdout)
    assert record["data"]["unlabeled"]["rows"] == 5
    assert record["data"]["unlabeled"]["source"]["path"] == str(pool)
    # 40 rows in twenties, then 5.
    assert record["times"]["steps"] == 3


SUITE = """summary = "Of tests"
labels = ["negative", "positive"]
[adversarial.turned]
parts = { one = "shift.csv", two = "reviews@dev" }
[shift.gone]
path = "gone@test"
"""


def test_a_study_evaluates_on_a_suite_and_trains_on_its_own_rows(
    tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    suite = tmp_path / "own.toml"
    suite.write_text(SUITE, encoding="utf-8")
    out = tmp_path / "study"
    json_output(
        "compare", "--model", tiny_model, "--data", tiny_data / "reviews", "--methods", "plain",
        "--seeds", "0", "--set", "train.max_steps=1", "--set", "train.device=cpu",
        "--max-length", "32", "--set", f"sets.adversarial=made={tiny_data / 'shift.csv'}",
        "--anomaly", f"odd={tiny_data / 'anomaly.csv'}", "--suite", suite,
        "--set", f"data_root={tiny_data}", "--perspectives", "task,adversarial,groups,anomaly",
        "--set", "evaluate.bootstrap=0", "--out", out,
    )  # fmt: skip
    plan = json.loads((out / "study.json").read_text(encoding="utf-8"))
    assert (plan["suite"], list(plan["missing"])) == ("own", ["gone"])
    assert list(plan["adversarial"]) == ["made", "turned"]
    (run,) = plan["runs"]["plain"].values()
    result = json.loads((out / run / "evaluation" / "scores.json").read_text(encoding="utf-8"))
    assert list(result["missing"]) == ["gone"]
    assert any("'gone' of suite 'own' is missing" in notice for notice in result["notices"])
    scored = {(score["perspective"], score["set"]): score["n"] for score in result["scores"]}
    assert (scored["adversarial", "made"], scored["adversarial", "turned"]) == (10, 22)
    groups = {
        score["condition"]: score["n"]
        for score in result["scores"]
        if score["perspective"] == "groups"
    }
    assert groups == {"one": 10, "two": 12, "worst": 22, "mean": 22}
    # Detectors that learn from ordinary rows have some: the run's own.
    assert "mahalanobis" in {score["condition"] for score in result["scores"]}
