"""Bars, heat maps and ROC curves against numbers worked by hand and against scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_curve

from temper.display.cells import NAMED, Cell
from temper.display.charts import ends
from temper.display.drawing import Figure
from temper.display.folders import read
from temper.evaluation.perspectives.anomaly import CORNERS, roc, roc_curves
from temper.report.figures import figures
from temper.report.table import compare
from tests.report.attacked_rows import add_detectors, attack_study, robustness_scores
from tests.report.conftest import Plan, score

MakeStudy = Callable[[Plan], Path]
SCORES = st.lists(st.sampled_from([0.0, 0.1, 0.1 + 1e-12, 0.5, 0.9]), min_size=1, max_size=12)


def drawn(folder: Path) -> dict[str, Figure]:
    source = read(folder)
    return {figure.title: figure for figure in figures(source, compare(source))}


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
    # The differences are -0.04, -0.05, -0.06: t of 2 degrees of freedom, 4.3027, over root three.
    reach = 100 * 4.302653 * 0.01 / 3**0.5 / 0.11
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
        "3 seeds, 8",
    )
