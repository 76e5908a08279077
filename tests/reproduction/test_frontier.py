"""Cost and gain of methods: ratios of forward passes, and the figure of both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reproduction.facts import costs
from reproduction.frontier import frontier
from reproduction.lines import Interval
from reproduction.table import ReproductionTable
from temper.display.charts import Bars
from temper.display.folders import read
from temper.errors import SettingError
from tests.reproduction.kept_studies import make_line, write_study


def test_a_cost_is_the_mean_ratio_of_passes_times_steps(tmp_path: Path) -> None:
    scores = {"plain": [0.5, 0.5], "uegr": [0.6, 0.6], "unknown": [0.5, 0.5]}
    first = write_study(tmp_path / "a", scores, passes={"plain": (3.0, 100), "uegr": (7.5, 100)})
    second = write_study(tmp_path / "b", scores, passes={"plain": (3.0, 10), "uegr": (6.0, 30)})
    result = costs([read(first), read(second)], "plain")
    assert result == pytest.approx({"plain": 1.0, "uegr": (2.5 + 6.0) / 2})


def make_table(*gains: tuple[str, Interval | None]) -> ReproductionTable:
    """Return a table of two cases; the gains are those of their mean, the last row."""
    one = [make_line("gain", column, [0.0], case="sst2") for column, _ in gains]
    mean = [
        replace(make_line("gain", column, [0.0], case="mean of 2 cases"), to_reference=gain)
        for column, gain in gains
    ]
    costs_of = {"plain": 1.0, "dear": 3.0, "cheap": 1.1}
    return ReproductionTable("effect", "", "plain", (*one, *mean), frontier="gain", costs=costs_of)


def test_the_picture_shows_the_mean_over_the_cases_the_cheapest_on_top() -> None:
    known = Interval(0.1, 0.05, 0.15, 0.01, 0.02)
    table = make_table(("plain", None), ("dear", known), ("cheap", Interval(-0.02)))
    chart = frontier(table).chart
    assert isinstance(chart, Bars)
    drawn = {label: (mark.value, mark.ends) for (_, label), mark in chart.marks.items()}
    assert list(drawn) == ["cheap, 1.1 \u00d7", "dear, 3.0 \u00d7"]
    assert drawn["cheap, 1.1 \u00d7"] == (pytest.approx(-2.0), None)
    assert drawn["dear, 3.0 \u00d7"] == (pytest.approx(10.0), pytest.approx((5.0, 15.0)))


def test_without_a_second_method_there_is_no_figure() -> None:
    with pytest.raises(SettingError, match="plain"):
        frontier(make_table(("plain", None)))
