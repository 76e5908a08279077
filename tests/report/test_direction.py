"""Scores of which neither side is better, and costs: told apart, but never won."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from temper.functional.scores import SCORES
from temper.report.markdown import NEITHER, markdown
from temper.report.overview import overview
from temper.report.table import comparison, write
from temper.report.view import TableCell, groups
from tests.report.conftest import Plan, score, write_study

MakeStudy = Callable[[Plan], Path]

# By column and seed: far apart, and the second is the lower one.
CKA = {"vanilla": (0.90, 0.91, 0.92), "uegr": (0.60, 0.62, 0.61)}


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
    value = 0.02 + 0.0001 * seed if column == "vanilla" else 0.03 + 0.0002 * seed
    return [
        score("cost", "dev", "seconds_per_row", value, condition="seconds", higher_is_better=False)
    ]


@pytest.fixture
def plan() -> Plan:
    return Plan(extra=similar)


def row_of(folder: Path, layer: int = 2) -> Any:
    return comparison(folder).row("representation", "cka", layer=layer)


def entry_of(folder: Path, label: str) -> TableCell:
    found = comparison(folder)
    lines = dict(groups(found))["Representation"]
    (cells,) = [cells for row, cells in lines if label in row.label]
    return cells[2]


def test_the_direction_may_stand_with_the_score_or_follow_from_its_name(study: Path) -> None:
    assert SCORES["cka"].higher_is_better is None
    assert SCORES["cka"].perfect is None
    assert row_of(study).higher_is_better is None


def test_the_answer_counts_neither_such_scores_nor_costs(
    make_study: MakeStudy, tmp_path: Path
) -> None:
    alone = comparison(make_study(Plan())).answer
    assert "better than vanilla on" in alone

    def extra(column: str, seed: int) -> list[dict[str, Any]]:
        return similar(column, seed) + dear(column, seed)

    other = tmp_path / "other"
    other.mkdir()
    found = comparison(write_study(other, Plan(extra=extra)))
    assert found.row("cost", "seconds_per_row").cells["uegr"].difference.verdict == "worse"
    assert found.answer == alone


def test_its_heading_has_no_arrow_and_the_others_keep_theirs(study: Path) -> None:
    found = comparison(study)
    assert row_of(study).heading().endswith("layer 2, dev")
    assert found.row("task", "accuracy").heading().endswith("\u2191")
    assert found.row("calibration", "ece_10", set="dev").heading().endswith("\u2193")


def test_its_differences_are_sorted_as_they_are(study: Path) -> None:
    entry = entry_of(study, "layer 2")
    assert (entry.mark, entry.verdict) == ("\u2212", "lower")
    assert entry.order == pytest.approx(-0.30)
    assert entry.detail.startswith("lower: difference")


def test_what_is_counted_are_batches_and_passes(tmp_path: Path) -> None:
    def extra(column: str, seed: int) -> list[dict[str, Any]]:
        return similar(column, seed) + dear(column, seed)

    found = groups(comparison(write_study(tmp_path, Plan(seeds=[0], extra=extra))))
    said = {title: lines[-1][1][0].detail for title, lines in found}
    assert "500 batches; 95 % interval over batches" in said["Representation"]
    assert "500 passes; 95 % interval over passes" in said["Cost"]
    assert "500 examples; 95 % interval over examples" in said["In distribution"]


def test_what_does_not_outlive_holms_correction_is_said(tmp_path: Path) -> None:
    def extra(column: str, seed: int) -> list[dict[str, Any]]:
        # With 2 degrees of freedom t = 4.33 has p = .0494, which three columns make .148.
        shift = {"vanilla": 0.0, "uegr": 0.0175, "third": 0.001, "fourth": -0.001}[column]
        noise = {"uegr": (0.007, 0.0, -0.007)}.get(column, (0.05, 0.0, -0.05))
        value = 0.5 + (shift + noise[seed] if column != "vanilla" else 0.0)
        return [score("representation", "dev", "cka", value, layer=2, higher_is_better=None)]

    columns = ["vanilla", "uegr", "third", "fourth"]
    entry = entry_of(write_study(tmp_path, Plan(columns=columns, extra=extra)), "layer 2")
    assert entry.verdict == "higher, not after Holm"


def test_no_column_is_the_best_by_it(make_study: MakeStudy) -> None:
    def extra(column: str, seed: int) -> list[dict[str, Any]]:
        return similar("vanilla" if column == "vanilla" else "uegr", seed)

    table = overview(comparison(make_study(Plan(["vanilla", "uegr", "third"], extra=extra))))
    place = next(number for number, text in enumerate(table.header) if text.startswith("CKA"))
    assert "layer 2" in table.header[place]
    assert table.best[place - 1] == frozenset()
    # The accuracy next to it has one.
    assert table.best[1]


def test_markdown_marks_no_such_score_and_says_why(study: Path) -> None:
    found = comparison(study)
    text = markdown(found)
    line = next(line for line in text.splitlines() if "CKA" in line)
    assert "▲" not in line
    assert "▼" not in line
    assert text.endswith(NEITHER)
    assert NEITHER not in markdown(found, ["task"])


def test_the_table_file_says_that_there_is_no_direction(study: Path) -> None:
    path, _ = write(comparison(study), study)
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    found = {row["higher_is_better"] for row in rows if row["name"] == "cka"}
    assert found == {None}
    assert {row["higher_is_better"] for row in rows if row["name"] == "ece_10"} == {False}
