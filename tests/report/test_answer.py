"""The answer claims no more than the intervals, Holm's correction and the seeds allow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from temper.display.cells import Cell, Comparison, Difference, Row, ScoreKey
from temper.display.folders import read
from temper.display.wording import unit
from temper.report.answer import answer
from temper.report.derived import views
from temper.report.table import comparison
from temper.report.view import about
from tests.report.conftest import Plan, write_study

BETTER = Difference({0: 8.0, 1: 9.0, 2: 10.0}, 9.0, 6.5, 11.5, 0.004, 0.008, False, "better")


def told(best: Difference) -> str:
    """Return the answer of three columns, of which the last has the best mean, 9 %."""
    other = replace(BETTER, mean=1.0, low=-1.0, high=3.0, verdict="inside the noise", p=0.4)
    cells = {
        "vanilla": Cell({0: 0.0}, {}, 0.0, None),
        "one": Cell({0: 1.0}, {}, 1.0, None, difference=other),
        "two": Cell({0: 9.0}, {}, 9.0, None, difference=best),
    }
    keys = [
        ScoreKey("summary", part, "clean", "relative_improvement")
        for part in ("", *[view.name for view in views() if view.improves])
    ]
    rows = tuple(Row(key, "", "", True, unit(key.name, "accuracy"), cells) for key in keys)
    columns = ("vanilla", "one", "two")
    return answer(Comparison("study", "m", "accuracy", "vanilla", columns, (0, 1, 2), rows))


def test_the_best_is_named_where_it_holds_after_holm() -> None:
    said = told(BETTER)
    assert said.startswith("two holds best")
    assert "improvement of +9.00 % over vanilla." in said
    assert "Holm" not in said


def test_the_best_of_several_chances_is_said_to_be_that() -> None:
    said = told(replace(BETTER, holm_p=0.06))
    assert "over vanilla, though not after Holm's correction over the columns." in said


@pytest.mark.parametrize("verdict", ["undecidable", "no common seed"])
def test_a_best_mean_of_too_few_seeds_is_not_called_noise(verdict: str) -> None:
    said = told(replace(BETTER, low=None, high=None, p=None, holm_p=None, verdict=verdict))
    assert said.startswith(
        "The best mean of the average relative improvement, +9.00 % for two, cannot be told from "
        f"noise: {verdict}."
    )
    assert "inside the noise" not in said


def test_a_best_mean_inside_the_noise_is_nobodys_lead() -> None:
    said = told(replace(BETTER, low=-1.0, verdict="inside the noise"))
    assert said.startswith("No column can be told from vanilla by the average relative improvement")


def unfinished(folder: Path, *, done: Mapping[str, Sequence[str]]) -> Comparison:
    """Return the comparison of a study of which only some seeds were run."""
    study = write_study(folder, Plan())
    record = json.loads((study / "study.json").read_text())
    record["runs"] = {
        name: {seed: record["runs"][name][seed] for seed in seeds} for name, seeds in done.items()
    }
    (study / "study.json").write_text(json.dumps(record))
    return comparison(study)


def test_a_study_with_nothing_to_compare_yet_says_so_first_and_averages_nothing(
    tmp_path: Path,
) -> None:
    found = unfinished(tmp_path / "one", done={"vanilla": ["0"]})
    assert found.answer.startswith(
        "Only 1 of 6 runs is finished and measured, so nothing can be compared yet: `temper"
    )
    assert not [row for row in found.rows if row.key.perspective == "summary"]
    assert not any("average relative improvement" in notice for notice in found.notices)
    assert ("runs", "1 of 6 finished and measured") in about(read(tmp_path / "one"), found)
    apart = unfinished(tmp_path / "apart", done={"vanilla": ["0", "1"], "uegr": ["2"]})
    assert apart.answer.startswith("Only 3 of 6 runs are finished and measured, so nothing can be")
    assert not [row for row in apart.rows if row.key.perspective == "summary"]


def test_a_study_that_is_partly_finished_says_so_before_what_came_out(tmp_path: Path) -> None:
    seeds = ["0", "1", "2"]
    found = unfinished(tmp_path / "some", done={"vanilla": seeds, "uegr": seeds[:1]})
    assert found.answer.startswith("Only 4 of 6 runs are finished and measured. uegr has the")
    assert [row for row in found.rows if row.key.perspective == "summary"]
    whole = unfinished(tmp_path / "all", done={"vanilla": seeds, "uegr": seeds})
    assert whole.unfinished == ""


def test_a_column_without_a_seed_of_the_reference_is_told_once(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", Plan(columns=["vanilla", "uegr", "late"]))
    record = json.loads((study / "study.json").read_text())
    del record["runs"]["late"]
    (study / "study.json").write_text(json.dumps(record))
    said = comparison(study).answer
    assert "late has no finished seed in common with vanilla." in said
    assert "scores had no common seed" not in said


def test_a_notice_of_some_runs_names_column_and_seed(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", Plan())
    run = study / "runs" / "uegr-s1-abc" / "run.json"
    run.write_text(run.read_text().replace('"notices": [', '"notices": ["One row is lost.", '))
    assert "One row is lost. (uegr, seed 1)" in comparison(study).notices
