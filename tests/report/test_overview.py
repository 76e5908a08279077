"""The overview has a line for each method and the leading score of each perspective."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from typer.testing import CliRunner

from temper.cli.app import app
from temper.report import build, comparison, overview
from tests.report.conftest import Plan

MakeStudy = Callable[[Plan], Path]

HEADER = (
    "method",
    "Relative improvement (%) ↑",
    "Accuracy, dev (%) ↑",
    "Shift: accuracy, mean of 2 sets (%) ↑",
    "Accuracy, FGM ℓ₂ radius 0.25, dev (%) ↑",
    "Accuracy, PGD ℓ₂ radius 0.25 (10 steps), dev (%) ↑",
    "Area under the noise curve, dev (%) ↑",
    "ECE (10 bins), mean of 3 sets (%) ↓",
    "AUROC, trec (%) ↑",
)


def test_each_perspective_gives_its_leading_score(study: Path) -> None:
    found = overview(comparison(study))
    assert found.header == HEADER
    vanilla, uegr = found.lines
    assert vanilla[0] == "vanilla"
    assert uegr[2] == "85.00 ± 2.65"
    # imdb and yelp of vanilla: 70 and 60, 72 and 62, 74 and 64.
    assert vanilla[3] == "67.00 ± 2.00"
    # A fall of .25 * .9 from 82.
    assert vanilla[4].startswith("59.50")
    # The calibration error is better where it is lower.
    assert found.best[6] == {1}


def test_corrupted_tokens_stand_with_the_area_of_the_first_kind(make_study: MakeStudy) -> None:
    found = overview(comparison(make_study(Plan(corrupted=True))))
    place = found.header.index("Area under the noise curve, dev (%) ↑") + 1
    assert found.header[place] == "Area under the curve, random tokens, dev (%) ↑"
    assert len(found.header) == len(HEADER) + 1


def test_what_all_share_marks_none(make_study: MakeStudy) -> None:
    equal = overview(comparison(make_study(Plan(columns=["uegr", "other"]))))
    assert not any(equal.best)


def test_ties_for_the_best_are_all_marked(make_study: MakeStudy) -> None:
    found = overview(comparison(make_study(Plan(columns=["vanilla", "uegr", "other"]))))
    assert found.best[1] == {1, 2}


def test_with_two_seeds_none_is_marked(make_study: MakeStudy) -> None:
    assert not any(overview(comparison(make_study(Plan(seeds=[0, 1])))).best)


def test_a_run_that_was_not_evaluated_has_nothing_to_print(tmp_path: Path, study: Path) -> None:
    run = study / "runs" / "uegr-s0-abc"
    shutil.rmtree(run / "evaluation")
    result = CliRunner().invoke(app, ["report", str(run), "--markdown"])
    assert result.exit_code != 0


def test_one_method_is_not_called_the_best(make_study: MakeStudy) -> None:
    alone = overview(comparison(make_study(Plan(columns=["vanilla"]))))
    assert not any(alone.best)


def test_the_page_shows_it_where_there_are_several_methods(make_study: MakeStudy) -> None:
    page = build(make_study(Plan(columns=["vanilla", "uegr", "other"]))).read_text()
    assert '<section id="overview"' in page
    assert "<strong>85.00 ± 2.65</strong>" in page


def test_two_methods_need_no_overview_on_the_page(study: Path) -> None:
    assert '<section id="overview"' not in build(study).read_text()


def test_the_command_prints_it_as_markdown(study: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(study), "--markdown"])
    assert result.exit_code == 0
    lines = result.stdout.strip().splitlines()
    assert lines[0] == f"| {' | '.join(HEADER)} |"
    assert lines[1] == "|" + "---|" * 9
    assert lines[3].startswith("| `uegr` | ")
    assert "**85.00 ± 2.65**" in lines[3]


def test_many_columns_are_counted_and_not_listed(make_study: MakeStudy) -> None:
    columns = ["vanilla", *(f"other{number}" for number in range(7))]
    found = comparison(make_study(Plan(columns=columns, seeds=[0])))
    assert found.title == "7 columns against vanilla, on a/model"
    assert found.answer == (
        "With fewer than three common seeds none of these means can be told from noise; give "
        "three (--seeds 0,1,2)."
    )


def test_few_columns_are_named_and_told_of_one_by_one(make_study: MakeStudy) -> None:
    told = comparison(make_study(Plan(columns=["vanilla", "uegr", "other"], seeds=[0])))
    assert told.title.startswith("uegr, other against vanilla")
    assert "other has the better mean" in told.answer
