"""Smoothness in a report: every layer in a figure, the last one and the logits in the tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from temper.display.drawing import Figure
from temper.display.folders import read
from temper.display.wording import unit
from temper.functional.units import ANY_SIZE
from temper.report.figures import sections
from temper.report.overview import overview
from temper.report.table import compare
from temper.report.view import groups
from tests.report.conftest import Plan, score, write_run, write_study

LAYERS = (1, 2, 3, None)
# By layer; the logits are last.
JACOBIAN = (10.0, 0.02, 3000.0, 0.5)


def smooth(column: str, seed: int) -> list[dict[str, Any]]:
    """Return both norms of a run: uegr halves vanilla's, a seed adds a tenth."""
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
    return {
        figure.title: figure for figure in dict(sections(source, compare(source)))["Smoothness"]
    }


def test_every_layer_stands_on_a_log_axis_the_logits_last(study: Path) -> None:
    found = drawn(study)
    assert list(found) == [
        "Smoothness by layer: Jacobian, dev",
        "Smoothness by layer: Hessian, dev",
    ]
    figure = found["Smoothness by layer: Jacobian, dev"].figure
    assert figure.layout.yaxis.type == "log"
    assert figure.layout.xaxis.categoryarray == ("1", "2", "3", "logits")
    vanilla, uegr = figure.data
    assert vanilla.x == ("1", "2", "3", "logits")
    # The mean of 1, 1.1 and 1.2 times each; its deviation is a tenth.
    assert vanilla.y == pytest.approx((11.0, 0.022, 3300.0, 0.55))
    assert uegr.y == pytest.approx((5.5, 0.011, 1650.0, 0.275))
    assert vanilla.error_y.array == pytest.approx((1.0, 0.002, 300.0, 0.05))
    assert vanilla.customdata[0] == "3 seeds, n = 64<br>10 to 12"
    hessian = found["Smoothness by layer: Hessian, dev"].figure
    assert hessian.data[0].y == pytest.approx((77.0, 0.154, 23100.0, 3.85))
    assert found["Smoothness by layer: Hessian, dev"].caption.startswith(
        "Mean over examples of the squared Frobenius norm"
    )


def test_a_run_tells_the_standard_error_of_one_seed(tmp_path: Path, plan: Plan) -> None:
    write_run(tmp_path / "run", plan, "vanilla", 0)
    entry = dict(groups(compare(read(tmp_path / "run"))))["Smoothness"][0][1][0]
    assert entry.main == "3e+03"
    assert "standard error over examples 30" in entry.detail


def test_tables_show_the_last_layer_and_the_logits(study: Path) -> None:
    found = compare(read(study))
    labels = [row.label for row in found.rows if row.key.perspective == "smoothness"]
    assert labels[0] == "Squared Jacobian norm, layer 1, dev"
    assert len(set(labels)) == 8
    wanted = [
        "Squared Jacobian norm, layer 3, dev",
        "Squared Jacobian norm, logits, dev",
        "Squared Hessian norm, layer 3, dev",
        "Squared Hessian norm, logits, dev",
    ]
    assert [row.label for row, _ in dict(groups(found))["Smoothness"]] == wanted
    terminal = [texts for group, texts in found.rows_for_terminal().rows if group == "Smoothness"]
    assert [texts[0] for texts in terminal] == [f"{label} \u2193" for label in wanted]
    assert terminal[1][1] == "0.55 \u00b1 0.05"
    # Lower is better, on every seed.
    assert terminal[1][4] == "better"
    order = list(dict.fromkeys(row.group for row in found.rows))
    assert order.index("Smoothness") == order.index("Calibration") - 1


def test_inner_layers_are_not_counted_in_the_answer(tmp_path: Path, plan: Plan) -> None:
    last = Plan(
        extra=lambda *run: [
            each for each in smooth(*run) if each["parameters"] in ({"layer": 3}, {})
        ]
    )
    said = [
        compare(read(write_study(tmp_path / name, each))).answer
        for name, each in (("all", plan), ("last", last), ("none", Plan()))
    ]
    assert said[0] == said[1] != said[2]


def test_the_overview_has_the_logits_jacobian(study: Path) -> None:
    found = overview(compare(read(study)))
    place = found.header.index("Squared Jacobian norm, logits, dev \u2193")
    assert [line[place] for line in found.lines] == ["0.55 \u00b1 0.05", "0.275 \u00b1 0.025"]
    assert found.best[place - 1] == {1}


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
