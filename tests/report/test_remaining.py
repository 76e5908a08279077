"""Gains that remain with post-hoc methods on both sides and at equal compute."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from temper.display.cells import Cell, Comparison, Difference, Row, ScoreKey, TrainingCost, Verdict
from temper.display.folders import Column, Source
from temper.display.wording import unit
from temper.report.gains import equal_compute
from temper.report.headline import headline
from temper.report.table import _with_differences

PLAIN_SCORES = {"accuracy": 0.90, "ece_10": 0.10}


def row(name: str, condition: str, value: float, verdict: Verdict, p: float = 0.001) -> Row:
    """Return a leading score of columns `plain` and `new`."""
    perspective, start = {"accuracy": "task", "ece_10": "calibration"}[name], PLAIN_SCORES[name]
    gap = value - start
    difference = Difference(
        dict.fromkeys(range(3), gap), gap, gap - 0.01, gap + 0.01, p, p, verdict=verdict
    )
    cells = {
        "plain": Cell(dict.fromkeys(range(3), start), {0: "r"}, start, 0.01),
        "new": Cell(dict.fromkeys(range(3), value), {0: "r"}, value, 0.01, difference=difference),
    }
    key = ScoreKey(perspective, "dev", condition, name)
    return Row(key, perspective, name, name == "accuracy", unit(name, name), cells)


def compared(*rows: Row, reference: str = "plain") -> Comparison:
    columns, seeds = (reference, "new"), (0, 1, 2)
    if reference != "plain":
        rows = tuple(
            replace(row, cells={reference: row.cells["plain"], "new": row.cells["new"]})
            for row in rows
        )
    return Comparison("study", "m", "accuracy", reference, columns, seeds, rows)


ACCURACY = row("accuracy", "clean", 0.901, "equivalent", 0.8)
BETTER = row("ece_10", "clean", 0.05, "better")
BETTER_AFTER = row("ece_10", "temperature", 0.05, "better")
TIED_AFTER = row("ece_10", "temperature", 0.099, "not significant", 0.9)


def test_a_gain_that_temperature_scaling_gives_to_both_is_not_recommended() -> None:
    result = headline(compared(ACCURACY, BETTER, TIED_AFTER))
    assert result.recommended == "plain"
    assert result.sentence.startswith("Keep plain fine-tuning.")
    assert "post-hoc" in result.sentence
    # The second line says what it gains without.
    assert "better calibrated" in result.certainty
    kept = headline(compared(ACCURACY, BETTER, BETTER_AFTER))
    assert (kept.recommended, "post-hoc" in kept.certainty) == ("new", True)


def test_a_gain_that_longer_plain_fine_tuning_has_is_not_recommended() -> None:
    whole = compared(ACCURACY, BETTER, BETTER_AFTER)
    longer = compared(ACCURACY, BETTER, TIED_AFTER, reference="plain_x3")
    lost = headline(replace(whole, equal={"new": longer}))
    assert (lost.recommended, "`plain_x3`" in lost.sentence) == ("plain", True)
    also = compared(ACCURACY, BETTER, BETTER_AFTER, reference="plain_x3")
    compared_too = headline(replace(whole, equal={"new": also}))
    assert compared_too.title == "Recommended: `new`"
    costs = {"plain": TrainingCost(passes=3.0), "new": TrainingCost(passes=9.0)}
    untested = headline(replace(whole, costs=costs))
    assert untested.title == "Not confirmed: `new`"
    assert "not compared" not in compared_too.certainty
    costs["new"] = TrainingCost(passes=4.0)
    assert "not compared" not in headline(replace(whole, costs=costs)).certainty


def test_a_loss_that_vanishes_with_temperature_scaling_does_not_outweigh_a_gain() -> None:
    accurate = row("accuracy", "clean", 0.95, "better")
    worse = row("ece_10", "clean", 0.2, "worse")
    result = headline(compared(accurate, worse, TIED_AFTER))
    assert (result.recommended, "temper calibrate" in result.certainty) == ("new", True)
    remains = row("ece_10", "temperature", 0.2, "worse")
    assert headline(compared(accurate, worse, remains)).recommended == "plain"
    assert headline(compared(accurate, worse)).recommended == "plain"


@pytest.mark.parametrize("verdict", ["worse", "not significant"])
def test_what_may_be_less_accurate_than_longer_plain_fine_tuning_is_not_recommended(
    verdict: Verdict,
) -> None:
    whole = compared(ACCURACY, BETTER, BETTER_AFTER)
    less = row("accuracy", "clean", 0.88, verdict, 0.2)
    longer = compared(less, BETTER, BETTER_AFTER, reference="plain_x3")
    result = headline(replace(whole, equal={"new": longer}))
    assert (result.recommended, "`plain_x3`" in result.sentence) == ("plain", True)


def test_the_further_tests_are_corrected_too() -> None:
    # Two gains, so the p of the least significant test of each counts twice: 0.03 does not remain.
    almost = row("ece_10", "temperature", 0.05, "better", 0.03)
    assert headline(compared(ACCURACY, BETTER, almost)).recommended == "plain"
    enough = row("ece_10", "temperature", 0.05, "better", 0.02)
    assert headline(compared(ACCURACY, BETTER, enough)).recommended == "new"


def test_one_study_in_twenty_at_most_recommends_what_temperature_scaling_does_as_well() -> None:
    """By simulation: six columns gain much, and with temperature scaling nothing."""
    draws, studies, recommended = np.random.default_rng(0), 200, 0
    names = ["plain", *(f"m{number}" for number in range(6))]
    for _ in range(studies):
        rows = []
        for condition, gain in (("clean", 0.05), ("temperature", 0.0)):
            values = 0.1 + 0.002 * draws.normal(size=(7, 3))
            values[1:] -= gain
            cells = {
                column: Cell(
                    dict(enumerate(own.tolist())),
                    dict.fromkeys(range(3), "r"),
                    float(own.mean()),
                    float(own.std(ddof=1)),
                    (500,),
                    500,
                )
                for column, own in zip(names, values, strict=True)
            }
            how = {"higher": False, "margin": 0.005, "largest": None}
            cells = _with_differences(
                cells, "plain", common=dict.fromkeys(cells, 3), of_rows=True, paired={}, **how
            )
            key = ScoreKey("calibration", "dev", condition, "ece_10")
            shown = unit("ece_10", "accuracy")
            rows.append(Row(key, "calibration", "ece_10", False, shown, cells))
        study = Comparison("study", "m", "accuracy", "plain", tuple(names), (0, 1, 2), tuple(rows))
        recommended += headline(study).recommended != "plain"
    assert recommended <= studies / 20


def test_a_column_is_compared_with_the_cheapest_plain_fine_tuning_of_its_compute(
    tmp_path: Path,
) -> None:
    columns: dict[str, tuple[str, dict[str, Any], float]] = {
        "plain": ("plain", {}, 10.0),
        "twice": ("plain", {"train": {"epochs": 6}}, 20.0),
        "thrice": ("plain", {"train": {"epochs": 9}}, 30.0),
        "augmented": ("plain", {"data": {"augment": "typos"}}, 40.0),
        "cheap": ("at", {}, 13.0),
        "uegr": ("uegr", {}, 24.0),
        "dear": ("jachess", {}, 60.0),
    }
    source = Source(
        tmp_path,
        "study",
        "m",
        "plain",
        tuple(Column(name, method, settings) for name, (method, settings, _) in columns.items()),
        (0,),
    )
    costs = {name: TrainingCost(passes=passes) for name, (*_, passes) in columns.items()}
    # 1.3 times rounds to the reference itself, and no plain fine-tuning costs 4 or 6 times.
    assert equal_compute(source, costs) == {"uegr": "twice"}
    dearest = replace(source, reference="augmented")
    assert equal_compute(dearest, costs) == {}


def test_the_expected_false_positives_are_five_per_cent_of_the_tested_differences() -> None:
    assert compared(*[BETTER] * 9).by_chance == ""
    many = compared(*[BETTER] * 60, *[replace(BETTER, minor=True)] * 60)
    assert re.findall(r"\d+", many.by_chance) == ["60", "3"]
