"""The overview and the whole table as Markdown: primary scores, and significant differences."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from temper.cli.app import app
from temper.display.cells import NAMED
from temper.errors import SettingError
from temper.report import comparison, overview
from temper.report.markdown import markdown
from tests.report.conftest import Plan, robustness_scores, score, write_study

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
    "AUROC, by max softmax, trec (%) ↑",
)


def test_each_perspective_gives_its_leading_score(study: Path) -> None:
    result = overview(comparison(study))
    assert result.header == HEADER
    plain, uegr = result.lines
    assert plain[0] == "plain"
    assert uegr[2] == "85.0 ± 2.6"
    # imdb and yelp of plain: 70 and 60, 72 and 62, 74 and 64.
    assert plain[3] == "67.0 ± 2.0"
    # A fall of .25 * .9 from 82.
    assert plain[4].startswith("59.5")
    # The calibration error is better where it is lower.
    assert result.best[6] == {1}


def several(column: str, seed: int) -> list[dict[str, Any]]:
    """Return scores of two recipes, two anomaly sets with two detectors, groups of two sets."""
    gain = 0.1 if column == "uegr" else 0.0
    made = robustness_scores(column, seed)
    for name, value in (("trec", 0.6), ("news", 0.8)):
        for detector, loss in (("energy", 2 * gain), ("knn", -gain)):
            made.append(score("anomaly", name, "auroc", value - loss, condition=detector))
    made.append(score("anomaly", "news", "auroc", 0.7))
    for name in ("dev", "imdb", "yelp"):
        made.append(score("calibration", name, "ece_10", 0.05, condition="temperature"))
    made.append(score("groups", "imdb", "worst_group", 0.3, condition="worst"))
    return made


def test_attacks_corruptions_and_groups_have_separate_scores(make_study: MakeStudy) -> None:
    result = overview(comparison(make_study(Plan(corrupted=True, extra=several))))
    means = {heading: result.lines[1][1:][index] for index, heading in enumerate(result.header[1:])}
    for wanted, text in {
        "Text attack: accuracy, character edits, dev (%) ↑": "50.0 ± 0.0",
        "Text attack: accuracy, word swaps, dev (%) ↑": "40.0 ± 0.0",
        "Area under the curve, random tokens, dev (%) ↑": "77.0 ± 2.6",
        "Area under the curve, masked tokens, dev (%) ↑": "77.0 ± 2.6",
        "Area under the curve, dropped tokens, dev (%) ↑": "77.0 ± 2.6",
        "Worst group\u2019s accuracy, dev (%) ↑": "80.0 ± 0.0",
        "Worst group\u2019s accuracy, imdb (%) ↑": "30.0 ± 0.0",
        "ECE (10 bins), mean of 3 sets (%) ↓": "6.0 ± 1.0",
        "ECE (10 bins), after temperature scaling, mean of 3 sets (%) ↓": "5.0 ± 0.0",
        # Means of .6 and .8, less .2 and plus .1; max softmax .92, .92, .95 on one set and .7.
        "AUROC, by max softmax, mean of 2 sets (%) ↑": "81.5 ± 0.9",
        "AUROC, by the energy, mean of 2 sets (%) ↑": "50.0 ± 0.0",
        "AUROC, by the nearest neighbors, mean of 2 sets (%) ↑": "80.0 ± 0.0",
    }.items():
        assert means[wanted] == text
    assert not [heading for heading in result.header if "news" in heading or "trec" in heading]


def test_a_detector_that_a_run_lacks_is_left_out_of_its_means(make_study: MakeStudy) -> None:
    def lacking(one: dict[str, Any], column: str, seed: int) -> bool:
        return (one["condition"], one["set"], column, seed) == ("energy", "news", "uegr", 1)

    result = comparison(make_study(Plan(extra=several, drop=lacking)))
    keys = {(row.key.condition, row.key.set) for row in result.rows if "mean" in row.key.set}
    assert ("energy", "mean of 2 sets") not in keys
    assert ("knn", "mean of 2 sets") in keys
    facts = r"OOD detection: .*'news' .*left out .*the energy; uegr \(seed 1\)"
    assert sum(bool(re.match(facts, notice)) for notice in result.notices) == 1


@pytest.mark.parametrize(
    ("plan", "marked"),
    [
        (Plan(columns=["plain", "uegr", "other"]), {1, 2}),
        (Plan(columns=["uegr", "other"]), set()),
        (Plan(columns=["plain"]), set()),
        (Plan(seeds=[0, 1]), set()),
    ],
    ids=["ties", "all alike", "one", "two seeds"],
)
def test_the_best_of_several_is_marked_from_three_seeds_on(
    make_study: MakeStudy, plan: Plan, marked: set[int]
) -> None:
    assert overview(comparison(make_study(plan))).best[1] == marked


def test_markdown_of_a_run_without_evaluation_raises_an_error(tmp_path: Path, study: Path) -> None:
    run = study / "runs" / "uegr-s0-abc"
    shutil.rmtree(run / "evaluation")
    result = CliRunner().invoke(app, ["report", str(run), "--markdown"])
    assert result.exit_code != 0


def test_the_command_prints_few_methods_side_by_side_and_marks_significant_differences(
    study: Path,
) -> None:
    result = CliRunner().invoke(app, ["report", str(study), "--markdown"])
    assert result.exit_code == 0
    lines = result.stdout.strip().splitlines()
    assert lines[:2] == ["| score | `plain` | `uegr` |", "|---|---|---|"]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2:-2]] == list(HEADER[1:])
    assert "**85.0 ± 2.6**" in lines[3]
    rows = {row.heading(): row for row in comparison(study).rows}
    for line in lines[3:-2]:
        heading, _, own = line.strip("| ").split(" | ")
        results = [row for name, row in rows.items() if name.endswith(heading.split(": ")[-1][1:])]
        verdict = results[0].cells["uegr"].difference.verdict
        assert own.endswith("▲") is (verdict == "better")
        assert own.endswith("▼") is (verdict == "worse")
    assert any(line.endswith("▲ |") for line in lines)
    assert re.match("▲ .*▼ .*`plain`", lines[-1])


def test_the_command_prints_many_methods_one_below_the_other(tmp_path: Path) -> None:
    columns = ["plain", "uegr", *(f"m{number}" for number in range(NAMED))]
    study = write_study(tmp_path / "many", Plan(columns=columns))
    lines = CliRunner().invoke(app, ["report", str(study), "--markdown"]).stdout.splitlines()
    ranked = (*HEADER[:2], "Mean rank over the perspectives ↓", *HEADER[2:])
    assert lines[0] == f"| {' | '.join(ranked)} |"
    assert lines[3].startswith("| `uegr` | ")


def test_many_columns_are_counted_and_not_listed(make_study: MakeStudy) -> None:
    columns = ["plain", *(f"other{number}" for number in range(7))]
    result = comparison(make_study(Plan(columns=columns, seeds=[0])))
    assert result.title == "7 methods against plain, on a/model"


def test_few_columns_are_named(make_study: MakeStudy) -> None:
    compared = comparison(make_study(Plan(columns=["plain", "uegr", "other"], seeds=[0])))
    assert compared.title.startswith("uegr, other against plain")


def lines_of(text: str) -> list[str]:
    return text.strip().splitlines()


def test_every_score_of_the_named_perspectives_has_a_line(study: Path) -> None:
    result = comparison(study)
    lines = lines_of(markdown(result, ["calibration", "task"]))
    assert lines[0] == "| score | `plain` | `uegr` |"
    assert lines[1] == "|---|---|---|"
    wanted = [row for row in result.shown if row.key.perspective in ("calibration", "task")]
    assert len(lines) - 4 == len(wanted)
    task = next(line for line in lines if line.startswith("| Accuracy, dev (%) ↑ |"))
    # 80, 82 and 84 against 82, 85 and 88 (see conftest): the means and their deviations.
    assert "82.0 ± 2.0 | 85.0 ± 2.6" in task


def test_significant_differences_are_marked_and_the_mark_explained(study: Path) -> None:
    result = comparison(study)
    text = markdown(result)
    verdicts = {
        cell.difference.verdict
        for row in result.shown
        for cell in row.cells.values()
        if cell.difference is not None
    }
    assert {"better"} <= verdicts
    assert text.count(" ▲ |") == sum(
        cell.difference is not None and cell.difference.verdict == "better"
        for row in result.shown
        for cell in row.cells.values()
    )
    assert "▲" in lines_of(text)[-1]


def test_with_one_seed_nothing_is_marked(make_study: MakeStudy) -> None:
    text = markdown(comparison(make_study(Plan(seeds=[0]))))
    assert "▲" not in text


def test_a_perspective_without_scores_raises_an_error(study: Path) -> None:
    with pytest.raises(SettingError, match="Unknown perspective .*'smoothness'"):
        markdown(comparison(study), ["smoothness"])


def test_markdown_needs_only_scores_and_writes_no_page(study: Path) -> None:
    for rows in study.rglob("rows.parquet"):
        rows.unlink()
    for more in ([], ["--perspectives", "all"]):
        result = CliRunner().invoke(app, ["report", str(study), "--markdown", *more])
        assert result.exit_code == 0
        assert "85.0 ± 2.6" in result.stdout
    assert not (study / "report.html").exists()


def test_the_command_prints_named_or_all_perspectives(study: Path) -> None:
    run = CliRunner()
    some = run.invoke(app, ["report", str(study), "--markdown", "--perspectives", "calibration"])
    assert some.exit_code == 0
    assert "ECE (10 bins)" in some.stdout
    assert "Accuracy" not in some.stdout
    every = run.invoke(app, ["report", str(study), "--markdown", "--perspectives", "all"])
    assert "Accuracy, dev (%) ↑" in every.stdout
    alone = run.invoke(app, ["report", str(study), "--perspectives", "calibration"])
    assert alone.exit_code != 0
