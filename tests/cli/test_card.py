"""``--card`` and ``--figures``: missing requirements are reported before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from temper.report.card import MARK
from tests.cli.calls import call, succeed
from tests.report.conftest import Plan, write_evaluation, write_run, write_study


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_run(tmp_path / "model", Plan(), "uegr", 0)
    (tmp_path / "model" / "config.json").write_text("{}", encoding="utf-8")
    return tmp_path / "model"


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Count evaluations, and write one as if a model had been measured."""
    result: list[Any] = []

    def judge(asked: Any, out: Path, **_: Any) -> dict[str, Any]:
        result.append(asked)
        write_evaluation(out, Plan(), "uegr", 1)
        return {"scores": []}

    monkeypatch.setattr("temper.evaluation.evaluate.evaluate_model", judge)
    return result


def test_an_evaluation_writes_the_card_of_its_model(
    model: Path, tmp_path: Path, judged: list[Any]
) -> None:
    data = tmp_path / "reviews.csv"
    data.write_text("text,label\na,negative\n", encoding="utf-8")
    imdb = "imdb=stanfordnlp/imdb"
    succeed("evaluate", model, "--data", data, "--shift", imdb, "--card", "--out",
                  tmp_path / "out")  # fmt: skip
    text = (model / "README.md").read_text()
    assert MARK in text
    # Seed 1 of the plan: the evaluation's own scores, not those inside the run.
    assert "84.0 [82.0, 86.0]" in text
    assert "type: stanfordnlp/imdb" in text
    assert "type: reviews" in text
    assert len(judged) == 1


def test_markdown_of_an_unfinished_study_warns_on_stderr(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", Plan())
    (study / "runs" / "uegr-s2-abc" / "run.json").unlink()
    for more in ((), ("--perspectives", "all")):
        result = succeed("report", study, "--markdown", *more)
        assert "Only 5 of 6 runs are finished and measured." in result.stderr
        assert "Only 5" not in result.stdout


def test_a_strangers_card_stops_an_evaluation_before_it_begins(
    model: Path, tmp_path: Path, judged: list[Any]
) -> None:
    (model / "README.md").write_text("# Mine\n")
    result = call("evaluate", model, "--data", "demo", "--card", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "not written by Temper" in " ".join(result.stderr.split())
    assert judged == []
    path = tmp_path / "card.md"
    more = ("--card-path", path, "--out", tmp_path / "out")
    succeed("evaluate", model, "--data", "demo", *more)
    assert MARK in path.read_text()
    assert (model / "README.md").read_text() == "# Mine\n"


def test_a_model_of_the_hub_needs_a_file_for_its_card(
    tmp_path: Path, judged: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("temper.api.nested.check_model", lambda _: None)
    result = call("evaluate", "owner/model", "--data", "demo", "--card", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "--card-path FILE" in " ".join(result.stderr.split())
    assert judged == []


def test_markdown_on_the_screen_has_no_figures(model: Path) -> None:
    result = call("report", model, "--markdown", "--figures")
    assert result.exit_code == 2
    assert "--markdown prints text and" in " ".join(result.stderr.split())
