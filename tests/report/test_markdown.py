"""The whole table as Markdown has a line a score, and says what differs by more than the noise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from temper.cli.app import app
from temper.errors import SettingError
from temper.report import comparison
from temper.report.markdown import markdown
from tests.report.conftest import Plan

MakeStudy = Callable[[Plan], Path]


def lines_of(text: str) -> list[str]:
    return text.strip().splitlines()


def test_every_score_of_the_named_perspectives_has_a_line(study: Path) -> None:
    found = comparison(study)
    lines = lines_of(markdown(found, ["calibration", "task"]))
    assert lines[0] == "| score | `vanilla` | `uegr` |"
    assert lines[1] == "|---|---|---|"
    wanted = [row for row in found.shown if row.key.perspective in ("calibration", "task")]
    assert len(lines) - 4 == len(wanted)
    task = next(line for line in lines if line.startswith("| Accuracy, dev (%) ↑ |"))
    # 80, 82 and 84 against 82, 85 and 88 (see conftest): the means and their deviations.
    assert "82.00 ± 2.00 | 85.00 ± 2.65" in task


def test_what_differs_by_more_than_the_noise_is_marked_and_the_mark_explained(study: Path) -> None:
    found = comparison(study)
    text = markdown(found)
    verdicts = {
        cell.difference.verdict
        for row in found.shown
        for cell in row.cells.values()
        if cell.difference is not None
    }
    assert {"better"} <= verdicts
    assert text.count(" ▲ |") == sum(
        cell.difference is not None and cell.difference.verdict == "better"
        for row in found.shown
        for cell in row.cells.values()
    )
    assert lines_of(text)[-1].startswith("▲ better and ▼ worse than `vanilla`")


def test_with_one_seed_nothing_is_marked(make_study: MakeStudy) -> None:
    text = markdown(comparison(make_study(Plan(seeds=[0]))))
    assert "▲" not in text


def test_a_perspective_without_scores_is_refused(study: Path) -> None:
    with pytest.raises(SettingError, match="perspective with scores here.*smoothness"):
        markdown(comparison(study), ["smoothness"])


def test_scores_alone_suffice_and_no_page_is_written(study: Path) -> None:
    for rows in study.rglob("rows.parquet"):
        rows.unlink()
    for more in ([], ["--perspectives", "all"]):
        found = CliRunner().invoke(app, ["report", str(study), "--markdown", *more])
        assert found.exit_code == 0
        assert "85.00 ± 2.65" in found.stdout
    assert not (study / "report.html").exists()


def test_the_command_prints_what_is_named_or_all(study: Path) -> None:
    run = CliRunner()
    some = run.invoke(app, ["report", str(study), "--markdown", "--perspectives", "calibration"])
    assert some.exit_code == 0
    assert "ECE (10 bins)" in some.stdout
    assert "Accuracy" not in some.stdout
    every = run.invoke(app, ["report", str(study), "--markdown", "--perspectives", "all"])
    assert "Accuracy, dev (%) ↑" in every.stdout
    alone = run.invoke(app, ["report", str(study), "--perspectives", "calibration"])
    assert alone.exit_code != 0
