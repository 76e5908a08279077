"""The first screen: its scale, the recommended method, and unresolved differences."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dev.benchmarks.usual import FILE, usual
from temper.display.cells import Cell, Comparison, Difference, Row, ScoreKey, Verdict
from temper.display.folders import read
from temper.display.wording import unit
from temper.report import build
from temper.report.derived import view_of
from temper.report.gains import Gain
from temper.report.headline import Headline, headline
from temper.report.levels import levels
from temper.report.table import _with_differences, compare
from tests.report.conftest import Plan, score, write_run

MakeStudy = Callable[[Plan], Path]

SCORES = {"task": "accuracy", "calibration": "ece_10", "anomaly": "auroc", "shift": "accuracy"}


def row(perspective: str, reference: float, **ours: tuple[float, Verdict]) -> Row:
    """Return a leading score with its value and verdict for each method."""
    name = SCORES[perspective]
    higher = name != "ece_10"
    cells = {"plain": Cell(dict.fromkeys(range(3), reference), {0: "r"}, reference, 0.01)}
    for column, (value, verdict) in ours.items():
        gap = value - reference
        difference = Difference(
            dict.fromkeys(range(3), gap), gap, gap - 0.01, gap + 0.01, 0.01, 0.01, verdict=verdict
        )
        cells[column] = Cell(dict.fromkeys(range(3), value), {0: "r"}, value, 0.01)
        cells[column] = Cell(**{**vars(cells[column]), "difference": difference})
    key = ScoreKey(perspective, "dev", "clean", name)
    return Row(key, perspective, name, higher, unit(name, "accuracy"), cells)


def first(*rows: Row) -> Headline:
    columns = tuple(rows[0].cells)
    return headline(Comparison("study", "m", "accuracy", "plain", columns, (0, 1, 2), tuple(rows)))


@given(
    reference=st.floats(0.05, 0.95),
    fraction=st.floats(-1.0, 1.0),
)
def test_equal_fractions_of_the_error_have_equal_lengths_in_both_directions(
    reference: float, fraction: float
) -> None:
    accuracy = row("task", reference, new=(reference + fraction * (1 - reference), "equivalent"))
    error = row("calibration", reference, new=(reference - fraction * reference, "equivalent"))
    gains = first(accuracy, error).gains
    assert [gain.fraction for gain in gains] == pytest.approx([100 * fraction] * 2, abs=1e-6)
    assert gains[0].at(100.0) == pytest.approx(gains[1].at(100.0), abs=0.02)


def test_an_interval_is_ordered_if_lower_is_better() -> None:
    (gain,) = first(row("calibration", 0.10, new=(0.06, "better"))).gains
    assert (gain.fraction, gain.low, gain.high) == pytest.approx((40.0, 30.0, 50.0))


def test_a_perfect_or_tied_reference_keeps_its_position_on_the_scale() -> None:
    calibration = row("calibration", 0.10, new=(0.06, "better"))
    for reference, ours in ((1.0, 0.98), (1.0, 1.0), (0.9, 0.9)):
        gains = first(row("task", reference, new=(ours, "equivalent")), calibration).gains
        assert [gain.view.name for gain in gains] == ["task", "calibration"]
        # A loss against a perfect score counts by the whole scale: 2 points are 2%.
        assert gains[0].fraction == pytest.approx(100 * (ours - reference), abs=1e-9)
    (perfect,) = first(row("calibration", 0.0, new=(0.06, "worse"))).gains
    assert perfect.fraction == pytest.approx(-6.0)


def test_a_method_better_on_one_and_worse_on_no_perspective_is_recommended() -> None:
    result = first(
        row("task", 0.90, new=(0.901, "equivalent")), row("calibration", 0.10, new=(0.06, "better"))
    )
    assert result.recommended == "new"
    # The cost is unknown, so longer plain fine-tuning might do the same.
    assert result.title == "Not confirmed: `new`"
    assert "It is better calibrated (" in result.sentence
    assert "0.5 points" in result.sentence


def test_notices_come_before_the_recommendation_and_leave_its_title() -> None:
    made = row("task", 0.90, new=(0.87, "worse"))
    compared = Comparison(
        "study", "m", "accuracy", "plain", tuple(made.cells), (0, 1, 2), (made,), seen=("Seen.",)
    )
    assert headline(compared).text.startswith("Seen. Keep plain fine-tuning.")
    assert headline(compared).title == "Keep plain fine-tuning"


@pytest.mark.parametrize("verdict", ["worse", "not significant"])
def test_a_method_of_possibly_lower_accuracy_is_not_recommended(verdict: Verdict) -> None:
    result = first(
        row("task", 0.90, new=(0.87, verdict)), row("calibration", 0.10, new=(0.02, "better"))
    )
    assert result.recommended == "plain"
    assert result.sentence.startswith("Keep plain fine-tuning. `new` ")


def test_every_method_without_a_significant_difference_is_named() -> None:
    result = first(
        row("task", 0.90, new=(0.901, "equivalent"), plain_x2=(0.902, "equivalent")),
        row("calibration", 0.10, new=(0.099, "equivalent"), plain_x2=(0.101, "equivalent")),
    )
    assert result.recommended == "plain"
    assert "No difference of `new` and `plain_x2`" in result.sentence


def test_another_baseline_than_plain_fine_tuning_is_kept_by_its_name() -> None:
    made = row("task", 0.90, new=(0.87, "worse"))
    cells = {"tuned" if name == "plain" else name: cell for name, cell in made.cells.items()}
    compared = Comparison(
        "study", "m", "accuracy", "tuned", tuple(cells), (0, 1, 2), (replace(made, cells=cells),)
    )
    assert headline(compared).sentence.startswith("Keep `tuned`.")


def with_p(made: Row, p: float) -> Row:
    """Return a row whose columns have that p, alone and over the row's columns."""
    cells = {
        name: cell
        if cell.difference is None
        else replace(cell, difference=replace(cell.difference, p=p, holm_p=p))
        for name, cell in made.cells.items()
    }
    return replace(made, cells=cells)


def test_the_correction_is_over_perspectives_too() -> None:
    # Two comparisons: 2 * 0.03 is above 0.05, 2 * 0.02 is not.
    task = with_p(row("task", 0.90, new=(0.901, "equivalent")), 0.9)
    better = row("calibration", 0.10, new=(0.06, "better"))
    result = first(task, with_p(better, 0.03))
    assert result.recommended == "plain"
    assert result.gains[1].weak
    assert result.gains[1].weak in result.lines[1][2]
    assert first(task, with_p(better, 0.02)).recommended == "new"


def test_the_correction_is_over_columns_and_perspectives_together() -> None:
    # Four comparisons, of which the smallest p counts four times.
    both: dict[str, tuple[float, Verdict]] = {"new": (0.06, "better"), "other": (0.06, "better")}
    equal: dict[str, tuple[float, Verdict]] = {
        "new": (0.90, "equivalent"),
        "other": (0.90, "equivalent"),
    }
    task = with_p(row("task", 0.90, **equal), 0.9)
    assert first(task, with_p(row("calibration", 0.10, **both), 0.012)).recommended != "plain"
    assert first(task, with_p(row("calibration", 0.10, **both), 0.013)).recommended == "plain"


def test_one_study_in_twenty_at_most_recommends_a_column_that_does_not_differ() -> None:
    """By simulation: three columns of one law on four perspectives, three seeds each."""
    draws, studies, recommended = np.random.default_rng(0), 400, 0
    reference = {"task": 0.9, "shift": 0.8, "calibration": 0.1, "anomaly": 0.85}
    for _ in range(studies):
        rows = []
        for perspective, start in reference.items():
            name = SCORES[perspective]
            values = start + 0.002 * draws.normal(size=(3, 3))
            cells = {
                column: Cell(
                    dict(enumerate(own.tolist())),
                    dict.fromkeys(range(3), "r"),
                    float(own.mean()),
                    float(own.std(ddof=1)),
                    (500,),
                    500,
                )
                for column, own in zip(("plain", "new", "other"), values, strict=True)
            }
            cells = _with_differences(
                cells,
                "plain",
                common=dict.fromkeys(cells, 3),
                of_rows=True,
                paired={},
                higher=name != "ece_10",
                margin=0.005,
                largest=None,
            )
            key = ScoreKey(perspective, "dev", "clean", name)
            shown = unit(name, "accuracy")
            rows.append(Row(key, perspective, name, name != "ece_10", shown, cells))
        recommended += first(*rows).recommended != "plain"
    # That is 20 of 400. With a correction over the columns of each perspective it is 32.
    assert recommended <= 20


def test_the_recommended_column_is_drawn_and_others_have_lighter_marks() -> None:
    result = first(
        row("task", 0.90, new=(0.90, "equivalent"), other=(0.90, "equivalent")),
        row("calibration", 0.10, new=(0.10, "equivalent"), other=(0.05, "better")),
    )
    assert result.column == "other"
    assert [gain.column for gain in result.beside(result.gains[1])] == ["new"]


def test_the_headline_has_the_minimum_detectable_difference_and_no_seeds() -> None:
    made = row("shift", 0.80, new=(0.81, "not significant"))
    cell = made.cells["new"]
    assert cell.difference is not None
    noted = {"least": 0.0421, "standard_error": 0.01, "freedom": 4.0}
    open_ = replace(cell.difference, **noted)
    made.cells["new"] = replace(cell, difference=open_)
    assert "distribution shift 4.2 points." in first(made).certainty
    assert not re.search(r"\d+ seeds (would|detect)|Seeds to detect", first(made).certainty)


def test_seeds_are_named_for_a_difference_that_the_user_states() -> None:
    made = row("shift", 0.80, new=(0.81, "not significant"))
    cell = made.cells["new"]
    assert cell.difference is not None
    noted = {"least": 0.0376, "standard_error": 0.01, "freedom": 4.0}
    made.cells["new"] = replace(cell, difference=replace(cell.difference, **noted))
    columns = tuple(made.cells)
    compared = Comparison("study", "m", "accuracy", "plain", columns, (0, 1, 2), (made,))
    # Two points are two standard errors of three seeds: seven seeds, as `seeds_to_detect` says.
    asked = headline(replace(compared, detect=2.0)).certainty
    assert "2 points" in asked
    assert "distribution shift about 7" in asked
    few = headline(replace(compared, detect=0.1)).certainty
    assert "distribution shift more than 100" in few


def test_the_scale_holds_every_mark_and_cuts_what_is_longer() -> None:
    result = first(row("task", 0.90, new=(0.93, "better")))
    assert result.reach == 50
    (gain,) = result.gains
    assert gain.at(result.reach) == 80.0
    longer = Gain(gain.row, "new", -300.0, -400.0, -200.0, -1)
    assert longer.at(100) == 0.0
    assert longer.ends(100) == (0.0, 0.0)
    assert [gain.cut(25), gain.cut(50), longer.cut(100)] == ["over", "", "under"]


def test_a_difference_after_post_hoc_methods_has_a_lighter_mark(make_study: MakeStudy) -> None:
    def scaled(column: str, seed: int) -> list[dict[str, Any]]:
        value = (0.05 if column == "plain" else 0.04) + 0.001 * seed
        return [score("calibration", "dev", "ece_10", value, condition="temperature")]

    result = headline(compare(read(make_study(Plan(extra=scaled)))))
    (calibration,) = (gain for gain in result.gains if gain.row.key.perspective == "calibration")
    (given,) = result.beside(calibration)
    assert given.given == "after temperature scaling"
    # 5.1 becomes 4.1: 1 of 5.1.
    assert given.fraction == pytest.approx(100 / 5.1)
    task = result.gains[0]
    assert result.beside(task) == []


def test_a_lighter_mark_beyond_the_scale_is_an_arrowhead_with_its_value(
    make_study: MakeStudy,
) -> None:
    def scaled(column: str, seed: int) -> list[dict[str, Any]]:
        value = (0.05 if column == "plain" else 0.5) + 0.001 * seed
        return [score("calibration", "dev", "ece_10", value, condition="temperature")]

    page = build(make_study(Plan(extra=scaled))).read_text(encoding="utf-8")
    (message,) = re.findall(r'<i class="other given under" style="left:0.0%" title="(.*?)">', page)
    assert "\u2212882% [" in message
    assert "Arrowheads: beyond the scale" in page


def test_training_cost_includes_passes_memory_and_size(make_study: MakeStudy) -> None:
    folder = make_study(Plan())
    for file in folder.glob("runs/*/run.json"):
        record: dict[str, Any] = json.loads(file.read_text())
        uegr = record["method"] == "uegr"
        record |= {"passes": 9.0 if uegr else 3.0, "parameters": {"all": 1000, "trained": 1000}}
        memory = 900.0 if uegr else 600.0
        record["times"] = {"steps": 100 if uegr else 200, "memory_mib": memory}
        file.write_text(json.dumps(record))
    cost = headline(compare(read(folder))).cost
    assert "1.5x the compute" in cost
    assert "1.5x the memory" in cost
    assert "same at inference" in cost


@given(st.floats(0.0, 1.0), st.integers(2, 20))
def test_the_score_of_one_model_is_drawn_between_chance_and_perfect(
    value: float, classes: int
) -> None:
    alone = row("task", value)
    compared = Comparison("run", "m", "accuracy", None, ("plain",), (0,), (alone,), classes=classes)
    (level,) = levels(compared, "plain")
    assert level.fraction == pytest.approx(100 * (value * classes - 1) / (classes - 1), abs=1e-6)
    assert (level.standing == "worse than guessing") == (value < 1 / classes)


def test_intervals_of_one_seed_are_stated_to_be_over_rows() -> None:
    compared = row("task", 0.80, new=(0.85, "better"))
    difference = compared.cells["new"].difference
    assert difference is not None
    cells = {
        **compared.cells,
        "new": replace(compared.cells["new"], difference=replace(difference, examples=500)),
    }
    assert "the rows of one seed" in first(replace(compared, cells=cells)).certainty
    assert "the rows of one seed" not in first(compared).certainty


def test_models_at_chance_level_get_no_recommendation() -> None:
    # Calibration is much better, as for a model with the same prediction for all texts.
    columns, rows = (
        ("plain", "new"),
        [
            row("task", 0.53, new=(0.52, "not significant")),
            row("calibration", 0.10, new=(0.02, "better")),
        ],
    )
    compared = Comparison(
        "study", "m", "accuracy", "plain", columns, (0, 1, 2), tuple(rows), classes=2
    )
    assert headline(compared).recommended is None
    assert "53.0 ± 1.0%" in headline(compared).sentence
    learned = row("task", 0.53, new=(0.60, "better"))
    compared = Comparison(
        "study", "m", "accuracy", "plain", columns, (0, 1, 2), (learned, rows[1]), classes=2
    )
    assert headline(compared).recommended == "new"


def test_a_score_without_a_chance_level_has_no_mark() -> None:
    compared = Comparison(
        "run", "m", "accuracy", None, ("plain",), (0,), (row("calibration", 0.05),), classes=2
    )
    (level,) = levels(compared, "plain")
    assert (level.fraction, level.standing) == (None, "")


def test_the_headline_of_one_model_is_its_accuracy_with_a_line_for_each_perspective(
    run: Path,
) -> None:
    result = headline(compare(read(run)))
    assert result.title == "`uegr` reaches 83.0% [81.0, 85.0] accuracy"
    assert len(result.lines) == len(result.levels)


def test_a_page_has_the_calibration_error_after_temperature_scaling(tmp_path: Path) -> None:
    scaled = score("calibration", "dev", "ece_10", 0.04, condition="temperature")
    write_run(tmp_path, Plan(extra=lambda column, seed: [scaled]), "uegr", 0)
    text = view_of("calibration").says(compare(read(tmp_path)))
    assert text == "ECE (10 bins), after temperature scaling, dev: 4.0% [2.0, 6.0]."


def test_usual_differences_equal_those_of_the_stored_study() -> None:
    assert json.loads(FILE.read_text(encoding="utf-8")) == usual()


def test_the_page_begins_with_the_escaped_headline(
    make_study: MakeStudy,
) -> None:
    folder = make_study(Plan(seeds=[0]))
    page = build(folder).read_text(encoding="utf-8")
    text = compare(read(folder)).headline
    assert text.startswith("`uegr` cannot be compared with `plain`")
    assert "<h1><code>uegr</code> cannot be compared with <code>plain</code>" in page


def test_too_few_evaluation_rows_name_the_remedy(make_study: MakeStudy) -> None:
    # Scores over seeds, such as a mean over sets, need no rows.
    folder = make_study(Plan(drop=lambda score, column, seed: score["perspective"] != "task"))
    for path in folder.glob("runs/*/evaluation/scores.json"):
        document = json.loads(path.read_text(encoding="utf-8"))
        scores = [{**each, "n": 20} for each in document["scores"]]
        path.write_text(json.dumps({**document, "scores": scores}), encoding="utf-8")
    text = compare(read(folder)).headline
    assert text.startswith("`uegr` cannot be compared with `plain`: too few rows (20 of ")
    assert "--set data.dev_fraction=0.3" in text
