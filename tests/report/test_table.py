"""The comparison's numbers, worked out by hand from conftest.py."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from temper.display.cells import Row
from temper.errors import CheckpointError, SettingError
from temper.report import build, comparison, headline, write
from tests.report.conftest import Plan, row_of, score

# t quantile for 97.5% at 4 degrees of freedom, from a printed table.
T_FOUR = 2.776445

MakeStudy = Callable[[Plan], Path]


def task_row(folder: Path) -> Row:
    return row_of(comparison(folder), "task", "accuracy")


def test_a_cell_has_the_mean_and_the_sample_standard_deviation_over_seeds(study: Path) -> None:
    cells = task_row(study).cells
    assert cells["plain"].mean == pytest.approx(0.82)
    assert cells["plain"].standard_deviation == pytest.approx(0.02)
    assert cells["uegr"].mean == pytest.approx(0.85)
    # Deviations -0.02, -0.01, 0.03: sqrt(0.0014 / 2).
    assert cells["uegr"].standard_deviation == pytest.approx(math.sqrt(0.0007))
    assert cells["uegr"].seeds == {0: 0.83, 1: 0.84, 2: 0.88}
    assert cells["uegr"].examples == (500,)


def test_a_difference_has_the_interval_of_both_columns_seeds(study: Path) -> None:
    row = task_row(study)
    difference = row.cells["uegr"].difference
    assert difference is not None
    assert difference.seeds == pytest.approx({0: 0.03, 1: 0.02, 2: 0.04})
    assert difference.mean == pytest.approx(0.03)
    # Variances .0004 and .0007, so the half width is t * sqrt(.0011 / 3).
    assert difference.standard_error == pytest.approx(math.sqrt(0.0011 / 3))
    assert difference.freedom == pytest.approx(4.0)
    assert difference.low == pytest.approx(0.03 - T_FOUR * math.sqrt(0.0011 / 3))
    assert difference.high == pytest.approx(0.03 + T_FOUR * math.sqrt(0.0011 / 3))
    assert difference.includes_zero is True
    assert difference.verdict == "not significant"
    # 3.761 standard errors are the least that 4 degrees of freedom see four times in five.
    assert difference.least == pytest.approx(3.761 * math.sqrt(0.0011 / 3), rel=1e-3)
    assert difference.row_variance is None
    assert row.outlook("uegr").endswith(" 7.2")


def keep_variances(folder: Path, luck: float, *own: float, seeds: int = 3) -> None:
    """Write what a study keeps of the rows of the leading score."""
    named = {"perspective": "task", "set": "dev", "name": "accuracy"}
    variance = {**named, "rows": luck, "columns": own}
    column = {"seeds": list(range(seeds)), "variances": [variance]}
    content = {"resamples": 10, "columns": {"uegr": column}}
    (folder / "paired.json").write_text(json.dumps(content))


def test_stored_row_variances_enter_the_interval(study: Path) -> None:
    keep_variances(study, 0.0002, 0.0001, 0.0001)
    difference = task_row(study).cells["uegr"].difference
    assert difference is not None
    # .0002 and what the seeds' .0011 add to the rows' .0002 of it.
    assert difference.standard_error == pytest.approx(math.sqrt(0.0002 + 0.0009 / 3))
    assert difference.row_variance == pytest.approx(0.0002 - 0.0002 / 3)


def test_row_variances_of_other_seeds_are_ignored(study: Path) -> None:
    keep_variances(study, 0.0002, 0.0001, 0.0001, seeds=2)
    difference = task_row(study).cells["uegr"].difference
    assert difference is not None
    assert difference.row_variance is None


def test_two_seeds_have_a_verdict_where_their_rows_were_kept(make_study: MakeStudy) -> None:
    study = make_study(Plan(seeds=[0, 1]))
    keep_variances(study, 0.000001, 0.00001, 0.00001, seeds=2)
    difference = task_row(study).cells["uegr"].difference
    assert difference is not None
    assert difference.low is not None


def test_a_mean_over_sets_has_the_rows_of_all(study: Path) -> None:
    entries = [
        {"perspective": "shift", "set": name, "name": "accuracy", "rows": 0.0004, "columns": [0, 0]}
        for name in ("imdb", "yelp")
    ]
    column = {"seeds": [0, 1, 2], "variances": entries}
    content = {"resamples": 10, "columns": {"uegr": column}}
    (study / "paired.json").write_text(json.dumps(content))
    row = row_of(comparison(study), "shift", "accuracy", set="mean of 2 sets")
    difference = row.cells["uegr"].difference
    assert difference is not None
    assert difference.row_variance == pytest.approx(0.0002)


def test_the_margin_can_be_set_for_a_report(study: Path) -> None:
    assert task_row(study).cells["uegr"].difference.margin == 0.005  # type: ignore[union-attr]
    # The interval is [-2.32, +8.32].
    wide = comparison(study, margin=3.0)
    assert row_of(wide, "task", "accuracy").cells["uegr"].difference.verdict == "non-inferior"  # type: ignore[union-attr]
    assert "3 points" in wide.headline
    assert wide.to_json()["margin"] == 3.0
    with pytest.raises(SettingError, match="`margin` .*>= 0, got -1"):
        comparison(study, margin=-1.0)


def test_two_seeds_without_rows_give_differences_only(make_study: MakeStudy) -> None:
    result = comparison(make_study(Plan(seeds=[0, 1])))
    difference = row_of(result, "task", "accuracy").cells["uegr"].difference
    assert difference is not None
    assert difference.verdict == "undecidable"
    assert headline(result).recommended is None


def test_a_score_missing_in_one_seed_is_compared_over_the_others(make_study: MakeStudy) -> None:
    def lost(entry: dict, column: str, seed: int) -> bool:
        return (entry["set"], column, seed) == ("dev", "plain", 1)

    assert "better" in comparison(make_study(Plan(drop=lost))).headline


def test_scores_undefined_for_one_reason_are_one_line(make_study: MakeStudy) -> None:
    def undefined(entry: dict, column: str, seed: int) -> bool:
        if entry["perspective"] in ("calibration", "anomaly"):
            entry.update(value=None, low=None, high=None, reason="no temperature was fitted")
        return False

    result = comparison(make_study(Plan(drop=undefined)))
    messages = [notice for notice in result.notices if "no temperature was fitted" in notice]
    assert len(messages) == 1
    assert "undefined for plain and uegr" in messages[0]


def test_holm_multiplies_by_the_number_of_columns_left(make_study: MakeStudy) -> None:
    # Two columns with the same differences: Holm doubles the smallest p, and the other follows.
    result = comparison(make_study(Plan(columns=["plain", "r_at", "uegr"])))
    row = row_of(result, "calibration", "ece_10", set="dev")
    for name in ("r_at", "uegr"):
        difference = row.cells[name].difference
        assert difference is not None
        assert difference.p is not None
        assert difference.holm_p == pytest.approx(2 * difference.p)
        assert difference.verdict == "better"


def test_a_missing_run_is_reported_and_excluded(study: Path) -> None:
    document = json.loads((study / "study.json").read_text())
    del document["runs"]["uegr"]["2"]
    (study / "study.json").write_text(json.dumps(document))
    result = comparison(study)
    assert result.missing == ("uegr, seed 2: not run.",)
    assert sorted(row_of(result, "task", "accuracy").cells["uegr"].seeds) == [0, 1]


@pytest.mark.parametrize(
    ("status", "said"),
    [("running", r"not finished \(status 'running'\)"), (None, "no run.json")],
)
def test_an_unfinished_run_is_missing(study: Path, status: str | None, said: str) -> None:
    path = study / "runs/uegr-s2-abc/run.json"
    if status is None:
        path.unlink()
    else:
        path.write_text(json.dumps({**json.loads(path.read_text()), "status": status}))
    (only,) = comparison(study).missing
    assert re.search(said, only)


def test_a_run_without_evaluation_is_missing(study: Path) -> None:
    (study / "runs/uegr-s2-abc/evaluation/scores.json").unlink()
    assert comparison(study).missing == ("uegr, seed 2: not evaluated.",)


def test_an_undefined_score_keeps_its_reason_and_no_number(make_study: MakeStudy) -> None:
    def undefined(column: str, seed: int) -> list[dict]:
        return [score("anomaly", "one", "auroc", None, reason="There is one class only.")]

    result = comparison(make_study(Plan(extra=undefined)))
    cell = row_of(result, "anomaly", "auroc", set="one").cells["uegr"]
    assert cell.mean is None
    assert cell.reasons == ("There is one class only.",)
    assert any("There is one class only." in notice for notice in result.notices)


def test_the_shift_mean_is_the_unweighted_mean_over_sets(study: Path) -> None:
    cell = row_of(comparison(study), "shift", "accuracy", set="mean of 2 sets").cells["uegr"]
    assert cell.seeds == pytest.approx({0: 0.65, 1: 0.69, 2: 0.70})
    assert cell.examples == (1000,)


def test_a_set_that_one_run_lacks_is_excluded_from_all_means_and_reported(
    make_study: MakeStudy,
) -> None:
    def lost(entry: dict, column: str, seed: int) -> bool:
        return (entry["set"], column, seed) == ("yelp", "uegr", 0)

    result = comparison(make_study(Plan(drop=lost)))
    with pytest.raises(AssertionError, match="found 0"):
        row_of(result, "shift", "accuracy", set="mean of 2 sets")
    assert any("'yelp' is left out of" in notice for notice in result.notices)


def test_the_average_relative_improvement_is_the_tables(study: Path) -> None:
    row = row_of(comparison(study), "summary", "relative_improvement", set="")
    # plain: shift 0.67, ECE 0.11 (all sets alike), AUROC 0.90, each the mean over its seeds.
    shift = (0.65 - 0.67) / (1 - 0.67)
    calibration = (0.06 - 0.11) / (0 - 0.11)
    anomaly = (0.92 - 0.90) / (1 - 0.90)
    expected = 100 * (shift + calibration + anomaly) / 3
    assert row.cells["uegr"].seeds[0] == pytest.approx(expected)
    assert row.cells["plain"].mean == pytest.approx(0.0, abs=1e-9)


def test_a_second_improvement_applies_post_hoc_methods_to_both_columns(
    make_study: MakeStudy,
) -> None:
    after = {"plain": (0.04, 0.95), "uegr": (0.03, 0.96)}

    def fitted(column: str, seed: int) -> list[dict]:
        error, auroc = after[column]
        errors = [
            score("calibration", name, "ece_10", error, condition="temperature")
            for name in ("dev", "imdb", "yelp")
        ]
        return [*errors, score("anomaly", "trec", "auroc", auroc, condition="mahalanobis")]

    result = comparison(make_study(Plan(extra=fitted)))
    row = row_of(result, "summary_after", "relative_improvement", set="")
    shift = (0.65 - 0.67) / (1 - 0.67)
    calibration = (0.03 - 0.04) / (0 - 0.04)
    anomaly = (0.96 - 0.95) / (1 - 0.95)
    expected = 100 * (shift + calibration + anomaly) / 3
    assert row.cells["uegr"].seeds[0] == pytest.approx(expected)
    assert row.cells["plain"].mean == pytest.approx(0.0, abs=1e-9)
    # Over the reference as it is, the reference gains too.
    row = row_of(result, "summary_all_in", "relative_improvement", set="")
    own = {"plain": row.cells["plain"].mean, "uegr": row.cells["uegr"].seeds[0]}
    for column, moved in (("plain", 0.0), ("uegr", shift)):
        error, auroc = after[column]
        parts = (moved, (error - 0.11) / (0 - 0.11), (auroc - 0.90) / (1 - 0.90))
        assert own[column] == pytest.approx(100 * sum(parts) / 3)
    # What every model is judged by stays as it is.
    assert row_of(result, "summary", "relative_improvement", set="").cells["uegr"].mean == (
        pytest.approx(26.16, abs=0.01)
    )


def test_a_run_without_a_defined_score_does_not_affect_other_means(
    make_study: MakeStudy,
) -> None:
    def fitted(column: str, seed: int) -> list[dict]:
        collapsed = (column, seed) == ("uegr", 1)
        reason = {"reason": "no temperature was fitted"} if collapsed else {}
        errors = [
            score(
                "calibration", name, "ece_10", None if collapsed else 0.04,
                condition="temperature", **reason,
            )
            for name in ("dev", "imdb", "yelp")
        ]  # fmt: skip
        return [*errors, score("anomaly", "trec", "auroc", 0.95, condition="mahalanobis")]

    result = comparison(make_study(Plan(extra=fitted)))
    means = row_of(result, "calibration", "ece_10", condition="temperature", set="mean of 3 sets")
    assert means.cells["plain"].seeds == pytest.approx({0: 0.04, 1: 0.04, 2: 0.04})
    assert means.cells["uegr"].seeds == pytest.approx({0: 0.04, 2: 0.04})
    assert means.cells["uegr"].reasons == ("no temperature was fitted",)
    after = row_of(result, "summary_after", "relative_improvement", set="")
    assert set(after.cells["plain"].seeds) == {0, 1, 2}
    # Over fewer parts it would be another score.
    assert set(after.cells["uegr"].seeds) == {0, 2}


def test_table_json_and_scores_csv_hold_every_value(study: Path) -> None:
    write(comparison(study), study)
    document = json.loads((study / "table.json").read_text(encoding="utf-8"))
    (row,) = [
        row for row in document["rows"] if (row["perspective"], row["name"]) == ("task", "accuracy")
    ]
    assert row["columns"]["uegr"]["seeds"] == {"0": 0.83, "1": 0.84, "2": 0.88}
    assert row["columns"]["uegr"]["difference"]["includes_zero"] is True
    with (study / "scores.csv").open(encoding="utf-8", newline="") as lines:
        result = [
            (line["column"], line["seed"], line["run"], float(line["value"]))
            for line in csv.DictReader(lines)
            if (line["perspective"], line["name"]) == ("task", "accuracy")
        ]
    assert ("uegr", "2", "uegr-s2-abc", 0.88) in result
    assert len(result) == 6


def test_a_single_run_has_scores_without_differences(run: Path) -> None:
    result = comparison(run)
    assert result.reference is None
    assert result.columns == ("uegr",)
    cell = row_of(result, "task", "accuracy").cells["uegr"]
    assert (cell.mean, cell.difference) == (0.83, None)
    assert result.headline.startswith("`uegr` reaches 83.0% ")


def test_a_single_evaluation_has_scores_without_differences(evaluation: Path) -> None:
    result = comparison(evaluation)
    assert result.kind == "evaluation"
    assert row_of(result, "task", "accuracy").cells["model"].mean == 0.83


def test_a_repeated_score_is_an_error(make_study: MakeStudy) -> None:
    plan = Plan(extra=lambda column, seed: [score("task", "dev", "accuracy", 0.1)])
    with pytest.raises(CheckpointError, match="'Accuracy, dev' twice"):
        comparison(make_study(plan))


def test_runs_of_different_tasks_are_not_compared(study: Path) -> None:
    path = study / "runs/uegr-s0-abc/evaluation/scores.json"
    document = json.loads(path.read_text())
    document["task"]["metric"] = "mcc"
    path.write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match="different tasks"):
        comparison(study)


def test_the_label_of_an_attack_states_its_radius_and_steps(study: Path) -> None:
    row = row_of(comparison(study), "embedding_attack", "accuracy", condition="pgd", radius=0.25)
    assert row.label == "Accuracy, PGD \u2113\u2082 radius 0.25 (10 steps), dev"


@pytest.mark.parametrize("points", [0.0, -1.0, math.nan, math.inf])
def test_a_difference_to_detect_is_a_positive_number_of_points(study: Path, points: float) -> None:
    with pytest.raises(SettingError, match="`detect` must be"):
        comparison(study, detect=points)
    with pytest.raises(SettingError, match="`detect` must be"):
        build(study, detect=points)


def test_the_stated_difference_is_in_the_headline_of_the_page(study: Path) -> None:
    assert "true difference of 3 points" not in comparison(study).headline
    assert "true difference of 3 points" in comparison(study, detect=3.0).headline
    assert "true difference of 3 points" in build(study, detect=3.0).read_text(encoding="utf-8")
