"""What the figures draw, against the numbers of conftest.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from temper.display.drawing import DARK, LIGHT, Figure, style
from temper.display.folders import read
from temper.report import build
from temper.report.figures import figures, sections
from temper.report.table import WITHOUT_ROWS, compare
from tests.report.conftest import Plan, score

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
