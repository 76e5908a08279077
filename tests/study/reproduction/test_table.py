"""Tables say what the studies say: hand-worked differences, intervals, means, what is absent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from temper.errors import CheckpointError
from temper.study.reproduction.lines import ABSENT, Interval
from temper.study.reproduction.run import keep
from temper.study.reproduction.specification import (
    CaseAtScale,
    Printed,
    Specification,
    read_specification,
)
from temper.study.reproduction.table import reproduction_table
from tests.study.reproduction.kept_studies import write_study

VANILLA, UEGR = (0.80, 0.82, 0.84), (0.83, 0.83, 0.86)
# t of 2 degrees of freedom at .975 is 4.302653, a deviation of .01 over 3 seeds: .0248414.
REACH = 4.302653 * 0.01 / 3**0.5


def with_numbers(*numbers: tuple[str, str, str]) -> Specification:
    """Return Table IV with some printed numbers."""
    read = read_specification("uegr-table-4")
    printed = tuple(
        Printed(case=case, column=column, score="accuracy", value=value, source="test")
        for case, column, value in numbers
    )
    return read.model_copy(update={"printed": printed})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return two finished cases of Table IV."""
    write_study(tmp_path / "text_cnn-imdb", {"vanilla": VANILLA, "uegr": UEGR})
    write_study(tmp_path / "text_cnn-tnews", {"vanilla": (0.5, 0.5, 0.5), "uegr": (0.4, 0.4, 0.4)})
    return tmp_path


def test_ours_stands_beside_the_paper_with_the_difference_and_its_interval(folder: Path) -> None:
    table = reproduction_table(with_numbers(("text_cnn-imdb", "uegr", "82.0")), folder)
    line = table.line("text_cnn-imdb", "accuracy", "uegr")
    assert line is not None
    assert line.printed == "82.0"
    assert line.to_reference is not None
    assert line.to_paper is not None
    assert line.to_reference.mean == pytest.approx(0.02)
    assert line.to_reference.low == pytest.approx(0.02 - REACH, abs=1e-7)
    assert line.to_reference.high == pytest.approx(0.02 + REACH, abs=1e-7)
    # .01, .01 and .04 above the printed .82: deviation .0173205.
    assert line.to_paper.mean == pytest.approx(0.02)
    assert line.to_paper.high == pytest.approx(0.02 + 3**0.5 * REACH, abs=1e-7)
    assert line.verdict == "inside the noise"
    assert line.cells()[3:6] == ("82.0", "84.00 ± 1.73", "+2.00 [−2.30, +6.30]")


def test_a_number_that_could_not_be_read_is_said_to_be_absent(folder: Path) -> None:
    table = reproduction_table(read_specification("uegr-table-4"), folder)
    assert {line.printed for line in table.lines} == {None}
    assert {line.cells()[3] for line in table.lines} == {ABSENT}
    assert any("none is at hand" in note for note in table.notes)


def test_the_mean_over_cases_is_that_of_every_seed(folder: Path) -> None:
    table = reproduction_table(read_specification("uegr-table-4"), folder)
    line = table.line("mean of 2 cases", "accuracy", "uegr")
    assert line is not None
    assert line.seeds == pytest.approx({0: 0.615, 1: 0.615, 2: 0.63})
    assert line.to_reference is not None
    # .03 and -.1, .01 and -.1, .02 and -.1.
    assert line.to_reference.mean == pytest.approx(-0.04)
    assert line.to_reference.high == pytest.approx(-0.04 + REACH / 2, abs=1e-7)
    assert line.verdict == "worse"


def test_a_printed_average_stands_beside_the_mean_over_all_cases_only(tmp_path: Path) -> None:
    read = with_numbers(("average", "uegr", "70.0"))
    for case in read.case[:2]:
        write_study(tmp_path / case.name, {"vanilla": VANILLA, "uegr": UEGR})
    partial = reproduction_table(read, tmp_path).line("mean of 2 cases", "accuracy", "uegr")
    assert partial is not None
    assert partial.printed is None
    for case in read.case[2:]:
        write_study(tmp_path / case.name, {"vanilla": VANILLA, "uegr": UEGR})
    whole = reproduction_table(read, tmp_path).line("mean of 12 cases", "accuracy", "uegr")
    assert whole is not None
    assert whole.printed == "70.0"
    assert whole.to_paper is not None
    assert whole.to_paper.mean == pytest.approx(0.14)


def test_a_lower_score_is_better_where_the_score_says_so(tmp_path: Path) -> None:
    lower = {"vanilla": (0.3, 0.3, 0.3), "jachess": (0.2, 0.21, 0.2)}
    write_study(
        tmp_path / "sst2", lower, name="brier", perspective="calibration", higher_is_better=False
    )
    table = reproduction_table(read_specification("jachess-brier"), tmp_path)
    line = table.line("sst2", "brier", "jachess")
    assert line is not None
    assert line.verdict == "better"


def test_two_seeds_give_a_difference_and_no_interval() -> None:
    assert Interval.of([0.1, 0.3]) == Interval(0.2)
    assert Interval.of([]) is None
    assert Interval(0.2).side is None


def test_what_differs_is_said_of_model_seeds_cases_and_methods(tmp_path: Path) -> None:
    two = {"vanilla": (0.5, 0.5), "uegr": (0.5, 0.6)}
    write_study(tmp_path / "text_cnn-imdb", two, model="tiny")
    notes = " ".join(reproduction_table(read_specification("uegr-table-4"), tmp_path).notes)
    assert "Model: tiny in place of text_cnn (text_cnn-imdb)." in notes
    assert "Seeds: 2 (paper: 5)." in notes
    assert "bilstm-imdb" in notes
    assert "Methods that were not run: dropout, at, r_drop, r_at, r_at_su." in notes


def test_what_a_scale_sets_for_one_case_is_said_of_it(folder: Path) -> None:
    read = read_specification("uegr-table-4")
    own = CaseAtScale(data={"rows": 7}, train={"epochs": 3.0})
    small = read.scales["small"].model_copy(update={"case": {"text_cnn-tnews": own}})
    read = read.model_copy(update={"scales": {**read.scales, "small": small}})
    record = {"schema": 1, "family": "uegr-table-4", "scale": "small", "not_run": {}}
    (folder / "reproduction.json").write_text(json.dumps(record), encoding="utf-8")
    notes = reproduction_table(read, folder).notes
    assert "Of text_cnn-tnews alone, data.rows: 7, train.epochs: 3.0." in notes
    assert not any("Of text_cnn-imdb" in note for note in notes)


def test_the_facts_say_what_was_run_beside_what_was_published(folder: Path) -> None:
    facts = reproduction_table(read_specification("uegr-table-4"), folder).facts[0]
    assert facts["trained on"] == "2,000 rows"
    assert facts["judged on"] == "1,000 rows"
    assert facts["published"] == "25,000 and 25,000"
    assert facts["training"] == "2 epochs, batch 16, rate 0.001"
    assert facts["minutes"] == "6"


def test_a_kept_copy_gives_the_same_table_and_holds_no_weights_or_rows(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    read = read_specification("uegr-table-4")
    to = tmp_path_factory.mktemp("results") / "kept"
    assert keep(read, folder, to) == ["text_cnn-imdb", "text_cnn-tnews"]
    assert reproduction_table(read, to) == reproduction_table(read, folder)
    suffixes = {path.suffix for path in to.rglob("*") if path.is_file()}
    assert suffixes == {".json"}
    # Again, over the older copy.
    assert keep(read, folder, to) == ["text_cnn-imdb", "text_cnn-tnews"]


def test_keeping_into_the_folder_itself_or_from_an_empty_one_is_refused(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    read = read_specification("uegr-table-4")
    with pytest.raises(CheckpointError, match="must lie apart"):
        keep(read, folder, folder / "kept")
    with pytest.raises(CheckpointError, match="holds no case of uegr-table-4"):
        keep(read, tmp_path_factory.mktemp("empty"), folder.parent / "kept-elsewhere")


def test_a_folder_without_studies_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds none"):
        reproduction_table(read_specification("uegr-table-4"), tmp_path)


def test_a_folder_of_another_reproduction_is_refused(folder: Path) -> None:
    (folder / "reproduction.json").write_text(
        '{"family": "jachess", "scale": "small", "not_run": {}}', encoding="utf-8"
    )
    with pytest.raises(CheckpointError, match="holds jachess"):
        reproduction_table(read_specification("uegr-table-4"), folder)
    (folder / "reproduction.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CheckpointError, match="is not what docs/formats.md describes"):
        reproduction_table(read_specification("uegr-table-4"), folder)


def test_markdown_and_json_hold_every_line(folder: Path) -> None:
    table = reproduction_table(read_specification("uegr-table-4"), folder)
    text = table.markdown()
    assert text.count("| text\\_cnn-imdb |") == 3
    assert "## What differs" in text
    assert len(table.to_json()["lines"]) == len(table.lines) == 6


def test_settings_of_a_method_that_are_not_the_tables_are_said(tmp_path: Path) -> None:
    scores = {"vanilla": VANILLA, "uegr": UEGR, "r_drop": UEGR}
    # Of these only low is not what the scale `full` sets.
    method = {"low": 0.1, "high": 0.5, "epsilon": 0.1, "relative": False, "alpha": 0.6}
    write_study(tmp_path / "text_cnn-imdb", scores, methods={"uegr": method})
    table = reproduction_table(read_specification("uegr-table-4"), tmp_path)
    said = [note for note in table.notes if note.startswith("Of ")]
    assert said == ["Of uegr, low 0.1 (table: 0.3): text_cnn-imdb."]
