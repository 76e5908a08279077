"""What the figures draw, against the numbers of conftest.py and scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_curve

from temper.display.cells import NAMED, Cell
from temper.display.charts import MOST_SERIES, Bars, Curve, Figure, HeatMap, Lines, style
from temper.display.folders import read
from temper.evaluation.perspectives.anomaly import CORNERS, roc, roc_curves
from temper.report import build
from temper.report.figures import figures
from temper.report.table import WITHOUT_ROWS, compare
from temper.report.view import leading
from tests.report.conftest import Plan, add_detectors, attack_study, robustness_scores, score

MakeStudy = Callable[[Plan], Path]

CLOSED = "Gap to a perfect score that is closed"  # the title of a figure


def drawn(folder: Path) -> dict[str, Figure]:
    source = read(folder)
    return {figure.title: figure for figure in figures(source, compare(source))}


Chart = TypeVar("Chart", Lines, Bars, HeatMap)


def chart(figure: Figure, kind: type[Chart]) -> Chart:
    assert isinstance(figure.chart, kind)
    return figure.chart


def curve(figure: Figure, name: str) -> Curve:
    curves = chart(figure, Lines).curves
    (result,) = [one for one in curves if one.name == name and not one.faint]
    return result


def places(figure: Figure, name: str) -> tuple[list[float | str], list[float]]:
    points = curve(figure, name).points
    return [point.x for point in points], [point.y for point in points]


def test_the_page_of_a_study_without_rows_reports_it(study: Path) -> None:
    whole = compare(read(study))
    assert WITHOUT_ROWS not in whole.notices
    assert "Reliability, dev" in drawn(study)
    (study / "runs/uegr-s0-abc/evaluation/rows.parquet").unlink()
    assert f"{WITHOUT_ROWS} (uegr, seed 0)" in compare(read(study)).notices
    for file in study.rglob("rows.parquet"):
        file.unlink()
    kept = compare(read(study))
    assert [notice for notice in kept.notices if notice not in whole.notices] == [WITHOUT_ROWS]
    assert kept.rows == whole.rows
    assert "Reliability, dev" not in drawn(study)
    assert WITHOUT_ROWS.split(":")[0] in build(study).read_text(encoding="utf-8")


def test_a_study_draws_every_kind_of_figure(study: Path) -> None:
    assert list(drawn(study)) == [
        "FGM \u2113\u2082, dev",
        "PGD \u2113\u2082 (10 steps), dev",
        "Gaussian noise, dev",
        "Reliability, dev",
        "Reliability, imdb",
        "Reliability, yelp",
        "OOD texts: trec",
        "Total loss",
        "Term: consistency",
        "Term: task",
    ]


def test_a_robustness_curve_starts_at_the_clean_score(study: Path) -> None:
    figure = drawn(study)["PGD \u2113\u2082 (10 steps), dev"]
    radii, accuracies = places(figure, "plain")
    assert radii == [0.0, 0.1, 0.25, 0.5]
    # 82% less 90 points a unit of radius.
    assert accuracies == pytest.approx([82.0, 73.0, 59.5, 37.0])
    # A standard deviation of 2 over three seeds: 4.303 * 2 / sqrt(3) to either side.
    for point in curve(figure, "plain").points:
        assert point.ends == pytest.approx((point.y - 4.968, point.y + 4.968), abs=1e-3)
    assert figure.caption.endswith("Lines are 95% intervals over seeds.")


def test_a_curve_of_one_seed_has_the_interval_over_examples(make_study: MakeStudy) -> None:
    figure = drawn(make_study(Plan(seeds=[0])))["PGD \u2113\u2082 (10 steps), dev"]
    points = curve(figure, "plain").points
    # conftest gives every score an interval of 0.02 to either side.
    for point in points:
        assert point.ends == pytest.approx((point.y - 2.0, point.y + 2.0))
    assert points[0].detail.endswith("radius 0: 80.0; 78.0 to 82.0; 1 seed, n = 500")
    assert figure.caption.endswith("Lines are 95% intervals over examples.")


def test_relative_radii_are_a_curve_of_their_own(make_study: MakeStudy) -> None:
    def relative(column: str, seed: int) -> list[dict]:
        kind = {"condition": "fgm", "norm": "l2", "steps": 1, "radius_relative": 0.2}
        return [score("embedding_attack", "dev", "accuracy", 0.5, **kind)]

    source = read(make_study(Plan(extra=relative)))
    result = figures(source, compare(source))
    sizes = [places(one, "plain")[0] for one in result if one.title == "FGM \u2113\u2082, dev"]
    assert sorted(sizes) == [[0.0, 0.1, 0.25, 0.5], [0.0, 0.2]]


def test_the_reliability_diagram_counts_the_rows_of_all_seeds(study: Path) -> None:
    points = curve(drawn(study)["Reliability, dev"], "uegr").points
    # Confidences 0.5 ... 0.9875 fill five bins with eight rows each, times three seeds.
    assert [point.detail.split("; ")[-1] for point in points] == ["24 rows"] * 5
    # Of the first 20 rows every third is wrong, at another place in each seed: a third of any bin.
    assert points[0].y == pytest.approx(2 / 3)
    assert points[-1].y == pytest.approx(1.0)
    # The first bin holds 0.5, 0.5125 ... 0.5875.
    assert points[0].x == pytest.approx(0.54375)


def test_a_training_curve_is_the_mean_over_seeds(study: Path) -> None:
    steps, losses = places(drawn(study)["Total loss"], "plain")
    assert steps[:2] == [0, 4]
    # 0.7 plus 0.02 times 0, 1 and 2 for the three seeds.
    assert losses[0] == pytest.approx(0.72)


def test_a_term_that_only_one_column_has_is_drawn_for_it_alone(study: Path) -> None:
    assert chart(drawn(study)["Term: consistency"], Lines).drawn == {"uegr"}


def test_columns_differ_in_color_marker_and_dash() -> None:
    looks = style(["plain", "a", "b", "c", "d", "e", "f", "g"], "plain")
    assert looks["plain"].color == 0
    assert len(set(looks.values())) == 8
    # The seventh method takes the first one's color again, with another marker and dash.
    assert looks["g"].color == looks["a"].color
    assert looks["g"].symbol != looks["a"].symbol


def test_an_attack_on_a_part_of_the_set_does_not_start_at_the_whole_sets_score(
    make_study: MakeStudy,
) -> None:
    def part(entry: dict, column: str, seed: int) -> bool:
        if entry["perspective"] == "embedding_attack":
            entry["n"] = 100
        return False

    figure = drawn(make_study(Plan(drop=part)))["FGM \u2113\u2082, dev"]
    assert places(figure, "plain")[0] == [0.1, 0.25, 0.5]
    assert "radius 0" not in figure.caption


def test_a_reliability_diagram_of_three_classes_is_of_the_predicted_class(study: Path) -> None:
    # The last one was predicted among more classes than its row still has (merge="argmax").
    predictions = [
        ([0.62, 0.2, 0.18], 0, 0),
        ([0.1, 0.66, 0.24], 1, 2),
        ([0.05, 0.05, 0.9], 2, 2),
        ([0.36, 0.34, 0.3], 0, 0),
        ([0.35, 0.45, 0.2], 0, 1),
    ]
    for file in study.rglob("rows.parquet"):
        table = pq.read_table(file)
        keep = table.slice(0, len(predictions))
        for name, values in (
            ("probabilities", [probabilities for probabilities, _, _ in predictions]),
            ("prediction", [float(predicted) for _, predicted, _ in predictions]),
            ("label", [float(label) for _, _, label in predictions]),
        ):
            index = keep.schema.get_field_index(name)
            keep = keep.set_column(index, keep.schema.field(name), [values])
        pq.write_table(keep, file)
    figure = drawn(study)["Reliability, dev"]
    confidences, right = places(figure, "uegr")
    # Bins .3 to .4 (.36 right, .35 wrong), .6 to .7 (.62 right, .66 wrong) and .9, three seeds.
    sizes = [point.detail.split("; ")[-1] for point in curve(figure, "uegr").points]
    assert sizes == ["6 rows", "6 rows", "3 rows"]
    assert confidences == pytest.approx([0.355, 0.64, 0.9])
    assert right == pytest.approx([0.5, 0.5, 1.0])


SCORES = st.lists(st.sampled_from([0.0, 0.1, 0.1 + 1e-12, 0.5, 0.9]), min_size=1, max_size=12)


def bars(figure: Figure, name: str) -> dict[str, Any]:
    marks = chart(figure, Bars).marks
    return {label: mark.value for (column, label), mark in marks.items() if column == name}


@given(SCORES, SCORES)
def test_a_roc_curve_is_scikit_learns(ordinary: list[float], anomalies: list[float]) -> None:
    curve = roc(np.array(ordinary), np.array(anomalies))
    flags = [0] * len(ordinary) + [1] * len(anomalies)
    false, true, _ = roc_curve(flags, ordinary + anomalies, drop_intermediate=False)
    assert curve[0].tolist() == pytest.approx(false.tolist())
    assert curve[1].tolist() == pytest.approx(true.tolist())


def test_each_detector_has_a_curve_of_its_own(evaluation: Path) -> None:
    add_detectors(evaluation)
    (figure,) = roc_curves(read(evaluation))
    names = [one.name for one in chart(figure, Lines).curves]
    assert names == ["chance", "by max softmax", "by the energy"]


def test_a_curve_of_many_rows_stays_small_and_keeps_its_ends(evaluation: Path) -> None:
    add_detectors(evaluation, rows=3000)
    (figure,) = roc_curves(read(evaluation))
    false, true = places(figure, "by the energy")
    assert len(false) == len(true) == CORNERS
    assert (false[0], true[0], false[-1], true[-1]) == (0.0, 0.0, 1.0, 1.0)


def test_rows_without_anomalies_draw_no_curve(make_study: MakeStudy) -> None:
    study = make_study(Plan(extra=robustness_scores))
    assert "Attacks" not in drawn(study)
    assert [title for title in drawn(study) if title.startswith("OOD texts")] == ["OOD texts: trec"]


def test_the_bar_of_a_perspective_is_the_fraction_of_the_gap_closed(make_study: MakeStudy) -> None:
    study = make_study(Plan(columns=["plain", "uegr", "other"]))
    figure = drawn(study)[CLOSED]
    result = bars(figure, "uegr")
    # Accuracy 0.82 becomes 0.85: 0.03 of 0.18. ECE 0.11 becomes 0.06: 0.05 of 0.11.
    assert result["In distribution: Accuracy, dev \u2191"] == pytest.approx(100 * 0.03 / 0.18)
    ece = "Calibration: ECE (10 bins), mean of 3 sets \u2193"
    assert result[ece] == pytest.approx(100 * 0.05 / 0.11)
    mark = chart(figure, Bars).marks["uegr", ece]
    # Both deviations are .01: t of 4 degrees of freedom, 2.7764, times the root of 2 / 3.
    reach = 100 * 2.776445 * 0.01 * (2 / 3) ** 0.5 / 0.11
    assert mark.ends == pytest.approx((mark.value - reach, mark.value + reach), rel=1e-5)


def test_a_perfect_reference_has_no_bar(make_study: MakeStudy) -> None:
    def perfect(column: str, seed: int) -> list[dict[str, Any]]:
        value = 1.0 if column == "plain" else 0.9
        return [score("text_attack", "dev", "accuracy", value, condition="characters")]

    plan = Plan(columns=["plain", "uegr", "other"], extra=perfect)
    result = bars(drawn(make_study(plan))[CLOSED], "uegr")
    assert len(result) > 4
    assert not [label for label in result if label.startswith("Text attack")]


def test_two_columns_have_no_figure_of_closed_gaps(run: Path, study: Path) -> None:
    for folder in (run, study):
        assert CLOSED not in drawn(folder)


def test_attacks_perturbations_and_groups_are_bars_by_condition(make_study: MakeStudy) -> None:
    result = drawn(make_study(Plan(extra=robustness_scores)))
    success = bars(result["Text attacks: Attack success, dev"], "uegr")
    assert success == pytest.approx({"character edits": 40.0, "word swaps": 40.0})
    worst = bars(result["Worst case, dev"], "plain")
    assert worst == pytest.approx(
        {"typos": 70.0, "lowercase": 70.0, "under all perturbations": 60.0}
    )
    groups = bars(result["Groups, dev"], "plain")
    assert groups == pytest.approx({"fiction": 80.0, "travel": 70.0, "worst group": 70.0})


def test_one_runs_bars_have_its_bootstrap_interval(make_study: MakeStudy) -> None:
    result = drawn(make_study(Plan(extra=robustness_scores, seeds=[0])))
    marks = list(chart(result["Worst case, dev"], Bars).marks.values())
    # conftest gives every score an interval of 0.02 to either side.
    for mark in marks:
        assert mark.ends == pytest.approx((mark.value - 2.0, mark.value + 2.0))
    assert marks[0].count == "1 seed, 500"


def test_each_detector_has_a_bar_where_there_are_several(make_study: MakeStudy) -> None:
    def energy(column: str, seed: int) -> list[dict[str, Any]]:
        return [score("anomaly", "trec", "auroc", 0.6, condition="energy")]

    result = drawn(make_study(Plan(extra=energy)))
    assert bars(result["AUROC, trec"], "plain") == pytest.approx(
        {"by max softmax": 90.0, "by the energy": 60.0}
    )


def test_a_single_detector_has_no_bars(study: Path) -> None:
    assert "AUROC, trec" not in drawn(study)


def test_several_columns_share_the_detector_with_the_largest_mean_area(study: Path) -> None:
    attack_study(study, detectors=True)
    figure = drawn(study)["OOD texts: trec"]
    chance, *curves = chart(figure, Lines).curves
    assert chance.column is None
    assert [one.column for one in curves] == ["plain", "uegr"]
    assert "the highest mean AUROC, by " in figure.caption


def test_a_line_figure_has_the_reference_and_the_three_best_columns(make_study: MakeStudy) -> None:
    plan = many()
    study = make_study(plan)
    result, source = drawn(study), read(study)
    (average,) = leading(compare(source), "summary")
    best = sorted(plan.columns[1:], key=lambda name: -(average.cells[name].mean or 0.0))[:3]
    lines = [figure.chart for figure in result.values() if isinstance(figure.chart, Lines)]
    assert {"plain", *best} in [one.drawn for one in lines]
    assert all(len(one.drawn) <= MOST_SERIES for one in lines)


def many(seeds: int = 3) -> Plan:
    others = [f"other{number}" for number in range(NAMED)]
    columns = ["plain", "uegr", *others]
    return Plan(columns=columns, seeds=list(range(seeds)), extra=robustness_scores)


def test_many_columns_are_a_heat_map_of_the_same_numbers(make_study: MakeStudy) -> None:
    result = drawn(make_study(many()))
    figure = result[CLOSED]
    heat = chart(figure, HeatMap)
    assert list(heat.columns) == many().columns[1:]
    # 0.11 becomes 0.06: 0.05 of 0.11, as of few columns.
    ece = heat.marks["uegr", "Calibration: ECE (10 bins), mean of 3 sets \u2193"]
    assert ece.value == pytest.approx(100 * 0.05 / 0.11)
    assert ece.count == "3 common seeds"
    assert heat.limits == (-100, 100)
    assert figure.numbers is not None
    assert len(figure.numbers.lines) == len(heat.columns) * len(heat.labels)
    groups = chart(result["Groups, dev"], HeatMap)
    assert groups.labels == ("fiction", "travel", "worst group")
    shown = [groups.marks["plain", label].value for label in groups.labels]
    assert shown == pytest.approx([80.0, 70.0, 70.0])
    assert "the darker the higher" in result["Groups, dev"].caption


def test_a_few_columns_are_bars(make_study: MakeStudy) -> None:
    plan = many()
    del plan.columns[MOST_SERIES:]
    result = drawn(make_study(plan))
    for title in (CLOSED, "Groups, dev"):
        assert isinstance(result[title].chart, Bars)


def test_the_ends_of_a_line_are_a_95_percent_interval() -> None:
    assert Cell({0: 0.5}, {}, 0.5, None, low=0.25, high=0.625).interval == (0.25, 0.625)
    # t of two degrees of freedom, 4.3027, times a standard deviation of 1 over sqrt(3).
    three = Cell({0: 1.0, 1: 2.0, 2: 3.0}, {}, 2.0, 1.0).interval
    assert three == pytest.approx((2.0 - 2.4841, 2.0 + 2.4841), abs=1e-4)
    # Two seeds have none, and neither have scores that never vary.
    assert Cell({0: 0.5, 1: 1.0}, {}, 0.75, 0.25).interval is None
    assert Cell(dict.fromkeys(range(3), 0.5), {}, 0.5, 0.0).interval is None
    assert Cell({0: 0.5}, {}, 0.5, None).interval is None
    assert Cell({}, {}, None, None).interval is None


def test_the_heat_map_has_a_cell_for_each_layer_and_column(make_study: MakeStudy) -> None:
    result = drawn(make_study(Plan(extra=robustness_scores)))
    figure = result["Similarity to the pre-trained model, dev"]
    heat = chart(figure, HeatMap)
    assert heat.columns == ("1", "2", "3")
    found_values = [
        [heat.marks[layer, name].value for layer in heat.columns] for name in heat.labels
    ]
    assert found_values == [pytest.approx([0.8, 0.7, 0.6]), pytest.approx([0.9, 0.8, 0.7])]
    assert figure.numbers is not None
    assert figure.numbers.lines[0] == (
        "plain",
        "1",
        "0.8000",
        "\u2013",
        "3 seeds, 8 batches",
    )
