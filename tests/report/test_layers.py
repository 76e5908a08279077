"""Reports of scores by layer, costs, and scores without a better direction."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from temper.display.charts import Figure, Lines
from temper.display.folders import read
from temper.display.views import Heading
from temper.display.wording import unit
from temper.functional.scores import SCORES
from temper.functional.units import ANY_SIZE
from temper.report.figures import sections
from temper.report.markdown import NEITHER, markdown
from temper.report.table import compare, comparison, write
from temper.report.view import TableCell, groups, overview
from tests.report.conftest import Plan, row_of, score, write_run, write_study

LAYERS = (1, 2, 3, None)
# By layer; the logits are last.
JACOBIAN = (10.0, 0.02, 3000.0, 0.5)


def smooth(column: str, seed: int) -> list[dict[str, Any]]:
    """Return both norms of a run: uegr halves plain's, a seed adds a tenth."""
    factor = (0.5 if column == "uegr" else 1.0) * (1 + 0.1 * seed)
    made = []
    for name, kind, times in (("jacobian_norm", "jacobian", 1.0), ("hessian_norm", "hessian", 7.0)):
        for layer, value in zip(LAYERS, JACOBIAN, strict=True):
            where = {"condition": kind, "layer": layer, "n": 64}
            whole = score("smoothness", "dev", name, times * factor * value, **where)
            made.append({**whole, "standard_error": 0.01 * value, "higher_is_better": False})
    return made


@pytest.fixture
def plan() -> Plan:
    return Plan(extra=smooth)


def drawn(folder: Path) -> dict[str, Figure]:
    source = read(folder)
    (inside,) = [
        section
        for section in sections(source, compare(source))
        if section.heading == Heading.REPRESENTATIONS
    ]
    return {figure.title: figure for figure in inside.figures}


def test_the_log_axis_has_every_layer_and_then_the_logits(study: Path) -> None:
    result = drawn(study)
    assert list(result) == [
        "Smoothness by layer: Jacobian, dev",
        "Smoothness by layer: Hessian, dev",
    ]
    chart = result["Smoothness by layer: Jacobian, dev"].chart
    assert isinstance(chart, Lines)
    assert chart.y.log
    plain, uegr = chart.curves
    assert [point.x for point in plain.points] == ["1", "2", "3", "logits"]
    # The mean of 1, 1.1 and 1.2 times each; its deviation is a tenth, over three seeds.
    assert [point.y for point in plain.points] == pytest.approx([11.0, 0.022, 3300.0, 0.55])
    assert [point.y for point in uegr.points] == pytest.approx([5.5, 0.011, 1650.0, 0.275])
    ends = [point.ends for point in plain.points]
    # 4.3027 / sqrt(3) deviations to either side.
    assert ends[0] == pytest.approx((11.0 - 2.4841, 11.0 + 2.4841), abs=1e-4)
    assert ends[2] == pytest.approx((3300.0 - 745.24, 3300.0 + 745.24), abs=1e-2)
    assert plain.points[0].detail.endswith("11; 8.52 to 13.5; 3 seeds, n = 64")
    hessian = result["Smoothness by layer: Hessian, dev"].chart
    assert isinstance(hessian, Lines)
    means = [point.y for point in hessian.curves[0].points]
    assert means == pytest.approx([77.0, 0.154, 23100.0, 3.85])
    assert "squared Frobenius norm" in result["Smoothness by layer: Hessian, dev"].caption


def test_a_single_run_has_the_standard_error_over_examples(tmp_path: Path, plan: Plan) -> None:
    write_run(tmp_path / "run", plan, "plain", 0)
    entry = dict(groups(compare(read(tmp_path / "run"))))["Smoothness"][0][1][0]
    assert entry.main == "3e+03"
    assert "standard error over examples 30" in entry.detail


def test_tables_show_the_last_layer_and_the_logits(study: Path) -> None:
    result = compare(read(study))
    labels = [row.label for row in result.rows if row.key.perspective == "smoothness"]
    assert labels[0] == "Squared Jacobian norm, layer 1, dev"
    assert len(set(labels)) == 8
    wanted = [
        "Squared Jacobian norm, layer 3, dev",
        "Squared Jacobian norm, logits, dev",
        "Squared Hessian norm, layer 3, dev",
        "Squared Hessian norm, logits, dev",
    ]
    assert [row.label for row, _ in dict(groups(result))["Smoothness"]] == wanted
    rows = [row for row, _ in dict(groups(result))["Smoothness"]]
    assert [row.heading() for row in rows] == [f"{label} \u2193" for label in wanted]
    assert rows[1].text("plain") == "0.55 \u00b1 0.05"
    # Lower is better, on every seed.
    difference = rows[1].cells["uegr"].difference
    assert difference is not None
    assert difference.said == "better"
    order = list(dict.fromkeys(row.group for row in result.rows))
    assert order.index("Smoothness") == order.index("Calibration") - 1


def test_inner_layers_are_not_counted_in_the_headline(tmp_path: Path, plan: Plan) -> None:
    last = Plan(
        extra=lambda *run: [
            each for each in smooth(*run) if each["parameters"] in ({"layer": 3}, {})
        ]
    )
    messages = [
        compare(read(write_study(tmp_path / name, each))).headline
        for name, each in (("all", plan), ("last", last), ("none", Plan()))
    ]
    assert messages[0] == messages[1] != messages[2]


def test_the_overview_has_the_logits_jacobian(study: Path) -> None:
    result = overview(compare(read(study)))
    index = result.header.index("Squared Jacobian norm, logits, dev \u2193")
    assert [line[index] for line in result.lines] == ["0.55 \u00b1 0.05", "0.275 \u00b1 0.025"]
    assert result.best[index - 1] == {1}


def test_numbers_of_any_size_have_three_digits() -> None:
    assert unit("hessian_norm", "accuracy") == ANY_SIZE
    assert [ANY_SIZE.text(value) for value in (0.00012345, 1.5, 123456.0, 0.0, None)] == [
        "0.000123",
        "1.5",
        "1.23e+05",
        "0",
        "\u2013",
    ]
    assert ANY_SIZE.text(-2.5e-7, signed=True) == "\u22122.5e\u221207"
    assert ANY_SIZE.text(2.0, signed=True) == "+2"


MakeStudy = Callable[[Plan], Path]

# By column and seed: far apart, and the second is the lower one.
CKA = {"plain": (0.90, 0.91, 0.92), "uegr": (0.60, 0.62, 0.61)}


def similar(column: str, seed: int) -> list[dict[str, Any]]:
    """Return CKA of two layers; that of the first hardly differs between the columns."""
    last = CKA[column][seed]
    first = 0.95 + 0.001 * (seed if column == "uegr" else 2 - seed)
    return [
        score(
            "representation",
            "dev",
            "cka",
            value,
            condition="cka",
            layer=layer,
            higher_is_better=None,
        )
        for layer, value in ((1, first), (2, last))
    ]


def dear(column: str, seed: int) -> list[dict[str, Any]]:
    """Return the time of a row: uegr is slower by half."""
    value = 0.02 + 0.0001 * seed if column == "plain" else 0.03 + 0.0002 * seed
    return [
        score("cost", "dev", "seconds_per_row", value, condition="seconds", higher_is_better=False)
    ]


@pytest.fixture
def alike(make_study: MakeStudy) -> Path:
    """Return a study with scores of which neither side is better."""
    return make_study(Plan(extra=similar))


def at_layer(folder: Path, layer: int = 2) -> Any:
    return row_of(comparison(folder), "representation", "cka", layer=layer)


def entry_of(folder: Path, label: str) -> TableCell:
    result = comparison(folder)
    lines = dict(groups(result))["Representation"]
    (cells,) = [cells for row, cells in lines if label in row.label]
    return cells[2]


def test_alignment_has_no_direction_and_no_perfect_value(alike: Path) -> None:
    assert SCORES["cka"].higher_is_better is None
    assert SCORES["cka"].perfect is None
    assert at_layer(alike).higher_is_better is None


def test_the_headline_ignores_costs_and_scores_without_a_direction(
    make_study: MakeStudy, tmp_path: Path
) -> None:
    alone = comparison(make_study(Plan())).headline
    assert "better calibrated" in alone

    def extra(column: str, seed: int) -> list[dict[str, Any]]:
        return similar(column, seed) + dear(column, seed)

    other = tmp_path / "other"
    other.mkdir()
    result = comparison(write_study(other, Plan(extra=extra)))
    assert row_of(result, "cost", "seconds_per_row").cells["uegr"].difference.verdict == "worse"
    assert result.headline == alone


def test_only_scores_with_a_direction_have_an_arrow(alike: Path) -> None:
    result = comparison(alike)
    assert at_layer(alike).heading().endswith("layer 2, dev")
    assert row_of(result, "task", "accuracy").heading().endswith("\u2191")
    assert row_of(result, "calibration", "ece_10", set="dev").heading().endswith("\u2193")


def test_differences_without_a_direction_are_sorted_by_value(alike: Path) -> None:
    entry = entry_of(alike, "layer 2")
    assert (entry.mark, entry.verdict) == ("\u2212", "lower")
    assert entry.order == pytest.approx(-0.30)
    assert entry.detail.startswith("lower: difference")


def test_details_name_the_counted_unit_of_each_perspective(tmp_path: Path) -> None:
    def extra(column: str, seed: int) -> list[dict[str, Any]]:
        return similar(column, seed) + dear(column, seed)

    result = groups(comparison(write_study(tmp_path, Plan(seeds=[0], extra=extra))))
    message = {title: lines[-1][1][0].detail for title, lines in result}
    assert "500 batches; 95% interval over batches" in message["Representation"]
    assert "500 passes; 95% interval over passes" in message["Cost"]
    assert "500 examples; 95% interval over examples" in message["In distribution"]


def test_differences_not_significant_after_holms_correction_are_marked(tmp_path: Path) -> None:
    def extra(column: str, seed: int) -> list[dict[str, Any]]:
        # With 2 degrees of freedom t = 4.33 has p = .0494, which three columns make .148.
        shift = {"plain": 0.0, "uegr": 0.0175, "third": 0.001, "fourth": -0.001}[column]
        noise = {"uegr": (0.007, 0.0, -0.007)}.get(column, (0.05, 0.0, -0.05))
        value = 0.5 + (shift + noise[seed] if column != "plain" else 0.0)
        return [score("representation", "dev", "cka", value, layer=2, higher_is_better=None)]

    columns = ["plain", "uegr", "third", "fourth"]
    entry = entry_of(write_study(tmp_path, Plan(columns=columns, extra=extra)), "layer 2")
    assert entry.verdict.startswith("higher, not significant")


def test_a_score_without_a_direction_has_no_best_column(make_study: MakeStudy) -> None:
    def extra(column: str, seed: int) -> list[dict[str, Any]]:
        return similar("plain" if column == "plain" else "uegr", seed)

    table = overview(comparison(make_study(Plan(["plain", "uegr", "third"], extra=extra))))
    position = next(number for number, text in enumerate(table.header) if text.startswith("CKA"))
    assert "layer 2" in table.header[position]
    assert table.best[position - 1] == frozenset()
    # The accuracy next to it has one.
    assert table.best[1]


def test_markdown_does_not_mark_scores_without_a_direction(alike: Path) -> None:
    result = comparison(alike)
    text = markdown(result)
    line = next(line for line in text.splitlines() if "CKA" in line)
    assert "▲" not in line
    assert "▼" not in line
    assert text.endswith(NEITHER)
    assert NEITHER not in markdown(result, ["task"])


def test_the_table_file_states_a_missing_direction(alike: Path) -> None:
    write(comparison(alike), alike)
    rows = json.loads((alike / "table.json").read_text(encoding="utf-8"))["rows"]
    result = {row["higher_is_better"] for row in rows if row["name"] == "cka"}
    assert result == {None}
    assert {row["higher_is_better"] for row in rows if row["name"] == "ece_10"} == {False}
