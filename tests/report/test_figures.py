"""What the figures draw, against the numbers of conftest.py and scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_curve

from temper.display.cells import NAMED, Cell
from temper.display.charts import ends
from temper.display.drawing import DARK, LIGHT, Figure, style
from temper.display.folders import read
from temper.evaluation.perspectives.anomaly import CORNERS, roc, roc_curves
from temper.report import build
from temper.report.figures import figures, sections
from temper.report.table import WITHOUT_ROWS, compare
from tests.report.conftest import Plan, add_detectors, attack_study, robustness_scores, score

MakeStudy = Callable[[Plan], Path]


def drawn(folder: Path) -> dict[str, Figure]:
    source = read(folder)
    return {figure.title: figure for figure in figures(source, compare(source))}


def trace(figure: Figure, name: str) -> Any:
    (found,) = [
        one for one in figure.figure.data if one.name == name and one.showlegend is not False
    ]
    return found


def test_a_study_whose_scores_alone_were_kept_has_a_page_that_says_so(study: Path) -> None:
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
        "Gap to a perfect score that is closed",
        "FGM \u2113\u2082, dev",
        "PGD \u2113\u2082 (10 steps), dev",
        "Gaussian noise, dev",
        "Reliability, dev",
        "Reliability, imdb",
        "Reliability, yelp",
        "Anomalies: trec",
        "Total loss",
        "Term: consistency",
        "Term: task",
    ]


def test_a_robustness_curve_starts_at_the_clean_score(study: Path) -> None:
    line = trace(drawn(study)["PGD \u2113\u2082 (10 steps), dev"], "vanilla")
    assert line.x == (0.0, 0.1, 0.25, 0.5)
    # 82 % less 90 points a unit of radius.
    assert line.y == pytest.approx((82.0, 73.0, 59.5, 37.0))
    assert line.error_y.array == pytest.approx((2.0, 2.0, 2.0, 2.0))


def test_a_curve_of_one_seed_has_the_interval_over_examples(make_study: MakeStudy) -> None:
    figure = drawn(make_study(Plan(seeds=[0])))["PGD \u2113\u2082 (10 steps), dev"]
    curve = trace(figure, "vanilla")
    # conftest gives every score an interval of 0.02 to either side.
    assert curve.error_y.array == pytest.approx((2.0, 2.0, 2.0, 2.0))
    assert curve.error_y.arrayminus == pytest.approx((2.0, 2.0, 2.0, 2.0))
    assert curve.customdata[0] == "1 seed, n = 500<br>78.00 to 82.00"
    assert figure.caption.endswith("Lines are 95 % intervals over examples.")


def test_relative_radii_are_a_curve_of_their_own(make_study: MakeStudy) -> None:
    def relative(column: str, seed: int) -> list[dict]:
        kind = {"condition": "fgm", "norm": "l2", "steps": 1, "radius_relative": 0.2}
        return [score("embedding_attack", "dev", "accuracy", 0.5, **kind)]

    source = read(make_study(Plan(extra=relative)))
    found = dict(sections(source, compare(source)))["Robustness"]
    sizes = [one.figure.data[0].x for one in found if one.title == "FGM \u2113\u2082, dev"]
    assert sorted(sizes) == [(0.0, 0.1, 0.25, 0.5), (0.0, 0.2)]


def test_the_reliability_diagram_counts_the_rows_of_all_seeds(study: Path) -> None:
    line = trace(drawn(study)["Reliability, dev"], "uegr")
    # Confidences 0.5 ... 0.9875 fill five bins with eight rows each, times three seeds.
    assert line.customdata == (24, 24, 24, 24, 24)
    # Of the first 20 rows every third is wrong, at another place in each seed: a third of any bin.
    assert line.y[0] == pytest.approx(2 / 3)
    assert line.y[-1] == pytest.approx(1.0)
    # The first bin holds 0.5, 0.5125 ... 0.5875.
    assert line.x[0] == pytest.approx(0.54375)


def test_a_training_curve_is_the_mean_over_seeds(study: Path) -> None:
    line = trace(drawn(study)["Total loss"], "vanilla")
    assert line.x[:2] == (0, 4)
    # 0.7 plus 0.02 times 0, 1 and 2 for the three seeds.
    assert line.y[0] == pytest.approx(0.72)


def test_a_term_that_only_one_column_has_is_drawn_for_it_alone(study: Path) -> None:
    names = {one.name for one in drawn(study)["Term: consistency"].figure.data if one.name}
    assert names == {"uegr"}


def test_names_from_data_are_escaped_in_hover_texts(make_study: MakeStudy) -> None:
    name = "<b>x</b>&"
    line = drawn(make_study(Plan(columns=["vanilla", name])))["Reliability, dev"].figure.data[-1]
    assert line.name == "&lt;b&gt;x&lt;/b&gt;&amp;"
    assert "<b>&lt;b&gt;x&lt;/b&gt;&amp;</b>" in line.hovertemplate


def test_columns_differ_in_colour_marker_and_dash() -> None:
    looks = style(["vanilla", "a", "b", "c", "d", "e", "f", "g"], "vanilla")
    assert looks["vanilla"]["color"] == LIGHT[0]
    assert len({tuple(look.values()) for look in looks.values()}) == 8
    # The seventh method takes the first one's colour again, with another marker and dash.
    assert looks["g"]["color"] == looks["a"]["color"]
    assert looks["g"]["symbol"] != looks["a"]["symbol"]


def test_both_themes_have_a_shade_for_every_colour() -> None:
    assert len(LIGHT) == len(DARK) == len({*LIGHT, *DARK}) / 2


def test_an_attack_on_a_part_of_the_set_does_not_start_at_the_whole_sets_score(
    make_study: MakeStudy,
) -> None:
    def part(entry: dict, column: str, seed: int) -> bool:
        if entry["perspective"] == "embedding_attack":
            entry["n"] = 100
        return False

    figure = drawn(make_study(Plan(drop=part)))["FGM \u2113\u2082, dev"]
    assert trace(figure, "vanilla").x == (0.1, 0.25, 0.5)
    assert "radius 0" not in figure.caption


def test_a_reliability_diagram_of_three_classes_is_of_the_predicted_class(study: Path) -> None:
    # The last one was predicted among more classes than its row still has (merge="argmax").
    answers = [
        ([0.62, 0.2, 0.18], 0, 0),
        ([0.1, 0.66, 0.24], 1, 2),
        ([0.05, 0.05, 0.9], 2, 2),
        ([0.36, 0.34, 0.3], 0, 0),
        ([0.35, 0.45, 0.2], 0, 1),
    ]
    for file in study.rglob("rows.parquet"):
        table = pq.read_table(file)
        keep = table.slice(0, len(answers))
        for name, values in (
            ("probabilities", [probabilities for probabilities, _, _ in answers]),
            ("prediction", [float(predicted) for _, predicted, _ in answers]),
            ("label", [float(label) for _, _, label in answers]),
        ):
            place = keep.schema.get_field_index(name)
            keep = keep.set_column(place, keep.schema.field(name), [values])
        pq.write_table(keep, file)
    line = trace(drawn(study)["Reliability, dev"], "uegr")
    # Bins .3 to .4 (.36 right, .35 wrong), .6 to .7 (.62 right, .66 wrong) and .9, three seeds.
    assert line.customdata == (6, 6, 3)
    assert line.x == pytest.approx((0.355, 0.64, 0.9))
    assert line.y == pytest.approx((0.5, 0.5, 1.0))


SCORES = st.lists(st.sampled_from([0.0, 0.1, 0.1 + 1e-12, 0.5, 0.9]), min_size=1, max_size=12)


def bars(figure: Figure, name: str) -> dict[str, Any]:
    (trace,) = [one for one in figure.figure.data if one.name == name]
    return dict(zip(trace.y, trace.x, strict=True))


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
    assert [one.name for one in figure.figure.data] == ["chance", "by max softmax", "by the energy"]


def test_a_curve_of_many_rows_stays_small_and_keeps_its_ends(evaluation: Path) -> None:
    add_detectors(evaluation, rows=3000)
    (figure,) = roc_curves(read(evaluation))
    (energy,) = [one for one in figure.figure.data if one.name == "by the energy"]
    assert len(energy.x) == len(energy.y) == CORNERS
    assert (energy.x[0], energy.y[0], energy.x[-1], energy.y[-1]) == (0.0, 0.0, 1.0, 1.0)


def test_rows_without_anomalies_draw_no_curve(make_study: MakeStudy) -> None:
    study = make_study(Plan(extra=robustness_scores))
    assert "Attacks" not in drawn(study)
    assert [title for title in drawn(study) if title.startswith("Anomalies")] == ["Anomalies: trec"]


def test_a_perspectives_bar_is_the_share_of_the_gap_that_is_closed(study: Path) -> None:
    figure = drawn(study)["Gap to a perfect score that is closed"]
    found = bars(figure, "uegr")
    # Accuracy 0.82 becomes 0.85: 0.03 of 0.18. ECE 0.11 becomes 0.06: 0.05 of 0.11.
    assert found["In distribution: Accuracy, dev \u2191"] == pytest.approx(100 * 0.03 / 0.18)
    ece = "Calibration: ECE (10 bins), mean of 3 sets \u2193"
    assert found[ece] == pytest.approx(100 * 0.05 / 0.11)
    trace = figure.figure.data[0]
    at = trace.y.index(ece)
    # Both deviations are .01: t of 4 degrees of freedom, 2.7764, times the root of 2 / 3.
    reach = 100 * 2.776445 * 0.01 * (2 / 3) ** 0.5 / 0.11
    assert trace.error_x.array[at] == pytest.approx(reach, rel=1e-5)
    assert trace.error_x.arrayminus[at] == pytest.approx(reach, rel=1e-5)


def test_where_the_reference_is_perfect_there_is_no_bar(make_study: MakeStudy) -> None:
    def perfect(column: str, seed: int) -> list[dict[str, Any]]:
        value = 1.0 if column == "vanilla" else 0.9
        return [score("text_attack", "dev", "accuracy", value, condition="characters")]

    found = bars(
        drawn(make_study(Plan(extra=perfect)))["Gap to a perfect score that is closed"], "uegr"
    )
    assert len(found) > 4
    assert not [label for label in found if label.startswith("Text attack")]


def test_one_column_has_no_gap_to_close(run: Path) -> None:
    assert "Gap to a perfect score that is closed" not in drawn(run)


def test_attacks_perturbations_and_groups_are_bars_by_condition(make_study: MakeStudy) -> None:
    found = drawn(make_study(Plan(extra=robustness_scores)))
    success = bars(found["Text attacks: Attack success, dev"], "uegr")
    assert success == pytest.approx({"character edits": 40.0, "word swaps": 40.0})
    worst = bars(found["Worst case, dev"], "vanilla")
    assert worst == pytest.approx(
        {"typos": 70.0, "lowercase": 70.0, "under all perturbations": 60.0}
    )
    groups = bars(found["Groups, dev"], "vanilla")
    assert groups == pytest.approx({"fiction": 80.0, "travel": 70.0, "worst group": 70.0})


def test_one_runs_bars_have_its_bootstrap_interval(make_study: MakeStudy) -> None:
    found = drawn(make_study(Plan(extra=robustness_scores, seeds=[0])))
    trace = found["Worst case, dev"].figure.data[0]
    # conftest gives every score an interval of 0.02 to either side.
    assert list(trace.error_x.array) == pytest.approx([2.0] * 3)
    assert trace.customdata[0][1] == "1 seed, 500"


def test_each_detector_has_a_bar_where_there_are_several(make_study: MakeStudy) -> None:
    def energy(column: str, seed: int) -> list[dict[str, Any]]:
        return [score("anomaly", "trec", "auroc", 0.6, condition="energy")]

    found = drawn(make_study(Plan(extra=energy)))
    assert bars(found["AUROC, trec"], "vanilla") == pytest.approx(
        {"by max softmax": 90.0, "by the energy": 60.0}
    )


def test_one_detector_needs_no_bars(study: Path) -> None:
    assert "AUROC, trec" not in drawn(study)


def test_curves_of_several_columns_say_whose_and_which_detectors_they_are(study: Path) -> None:
    attack_study(study, detectors=True)
    figure = drawn(study)["Anomalies: trec"]
    chance, *curves = figure.figure.data
    assert chance.legendgroup is None
    assert [one.legendgroup for one in curves] == ["vanilla", "vanilla", "uegr", "uegr"]
    assert [one.line.dash for one in curves] == ["solid", "dash"] * 2


def many(seeds: int = 3) -> Plan:
    others = [f"other{number}" for number in range(NAMED)]
    columns = ["vanilla", "uegr", *others]
    return Plan(columns=columns, seeds=list(range(seeds)), extra=robustness_scores)


def test_many_columns_are_a_heat_map_of_the_same_numbers(make_study: MakeStudy) -> None:
    found = drawn(make_study(many()))
    figure = found["Gap to a perfect score that is closed"]
    (heat,) = figure.figure.data
    assert list(heat.x) == many().columns[1:]
    line = list(heat.y).index("Calibration: ECE (10 bins), mean of 3 sets \u2193")
    # 0.11 becomes 0.06: 0.05 of 0.11, as of few columns.
    assert heat.z[line][0] == pytest.approx(100 * 0.05 / 0.11)
    assert list(heat.customdata[line][0])[1] == "3 common seeds"
    assert (heat.zmin, heat.zmax) == (-100, 100)
    assert figure.numbers is not None
    assert len(figure.numbers.lines) == len(heat.x) * len(heat.y)
    groups = found["Groups, dev"].figure.data[0]
    assert list(groups.y) == ["fiction", "travel", "worst group"]
    assert [one[0] for one in groups.z] == pytest.approx([80.0, 70.0, 70.0])
    assert "the darker the higher" in found["Groups, dev"].caption


def test_a_few_columns_are_bars(make_study: MakeStudy) -> None:
    plan = many()
    plan.columns.pop()
    found = drawn(make_study(plan))
    for title in ("Gap to a perfect score that is closed", "Groups, dev"):
        assert {one.type for one in found[title].figure.data} == {"bar"}


def test_the_ends_of_a_line_are_an_interval_or_a_deviation() -> None:
    assert ends(Cell({0: 0.5}, {}, 0.5, None, low=0.25, high=0.625)) == (0.25, 0.625)
    assert ends(Cell({0: 0.5, 1: 1.0}, {}, 0.75, 0.25)) == (0.5, 1.0)
    assert ends(Cell({0: 0.5}, {}, 0.5, None)) is None
    assert ends(Cell({}, {}, None, None)) is None


def test_the_heat_map_has_a_cell_for_each_layer_and_column(make_study: MakeStudy) -> None:
    found = drawn(make_study(Plan(extra=robustness_scores)))
    figure = found["Likeness to the pre-trained model, dev"]
    (heat,) = figure.figure.data
    assert list(heat.x) == ["1", "2", "3"]
    assert np.asarray(heat.z).tolist() == [
        pytest.approx([0.8, 0.7, 0.6]),
        pytest.approx([0.9, 0.8, 0.7]),
    ]
    assert figure.numbers is not None
    assert figure.numbers.lines[0] == (
        "vanilla",
        "1",
        "0.8000",
        "\u00b1 0.0000",
        "3 seeds, 8 batches",
    )
