"""The grid has the numbers of the lines in both orientations."""

from __future__ import annotations

from pathlib import Path

from reproduction.layout import WIDE, grid, markdown
from reproduction.specification import read_specification
from reproduction.table import reproduction_table
from tests.reproduction.kept_studies import write_study

STEADY = (0.80, 0.82, 0.84)


def shifted(step: float) -> tuple[float, ...]:
    """Return scores that differ from the steady ones by a step at every seed, up to 0.1%."""
    return tuple(
        value + step + jitter for value, jitter in zip(STEADY, (0.001, 0.0, -0.001), strict=True)
    )


def test_significant_differences_are_marked_and_missing_scores_are_dashes(tmp_path: Path) -> None:
    scores = {"plain": STEADY, "at": shifted(0.10), "r_drop": shifted(0.0)}
    write_study(tmp_path / "text_cnn-imdb", {**scores, "uegr": shifted(-0.10)})
    write_study(tmp_path / "text_cnn-tnews", scores)
    result = grid(reproduction_table(read_specification("uegr-table-4"), tmp_path))
    assert result.splitlines() == [
        "| case | plain | at | r_drop | uegr |",
        "|---|---|---|---|---|",
        "| text\\_cnn-imdb | 82.00 ± 2.00 | **92.00 ± 1.90** | 82.00 ± 1.90 | *72.00 ± 1.90* |",
        "| text\\_cnn-tnews | 82.00 ± 2.00 | **92.00 ± 1.90** | 82.00 ± 1.90 | – |",
        "| text\\_cnn, mean of 2 cases | 82.00 ± 2.00 | **92.00 ± 1.90** | 82.00 ± 1.90 | – |",
    ]


def test_many_methods_are_a_line_each(tmp_path: Path) -> None:
    read = read_specification("uegr-figure-3")
    names = [column.name for column in read.columns()][: WIDE + 1]
    write_study(tmp_path / "bert-base-sst2", dict.fromkeys(names, STEADY))
    lines = grid(reproduction_table(read, tmp_path)).splitlines()
    assert lines[0] == "| method | accuracy (%) |"
    assert [line.split(" | ")[0] for line in lines[2:]] == [f"| {name}" for name in names]


def test_markdown_contains_every_line_the_runs_and_the_differences(tmp_path: Path) -> None:
    write_study(tmp_path / "text_cnn-imdb", {"plain": STEADY, "uegr": shifted(0.05)})
    text = markdown(reproduction_table(read_specification("uegr-table-4"), tmp_path))
    assert "| 82.00 ± 2.00 | **87.00 ± 1.90** |" in text
    assert "| text\\_cnn-imdb | accuracy (%) | uegr | 90.89 | 87.00 ± 1.90 |" in text
    assert "### Runs" in text
    assert "- Seeds: 3 (paper: 5)." in text


def test_a_table_of_this_project_has_no_columns_of_a_paper(tmp_path: Path) -> None:
    write_study(tmp_path / "text_cnn-imdb", {"plain": STEADY, "uegr": STEADY})
    table = reproduction_table(read_specification("uegr-margin"), tmp_path)
    (heading, *_) = [line for line in markdown(table).splitlines() if "| method |" in line]
    assert "paper" not in heading
