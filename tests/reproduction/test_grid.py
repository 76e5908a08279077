"""The laid-out table says what the lines say, whichever way round it stands."""

from __future__ import annotations

from pathlib import Path

from reproduction.document import rewrite
from reproduction.grid import WIDE, grid
from reproduction.specification import read_specification
from reproduction.table import reproduction_table
from tests.reproduction.kept_studies import write_study

STEADY = (0.80, 0.82, 0.84)


def shifted(step: float) -> tuple[float, ...]:
    """Return scores that lie a step from the steady ones at every seed, give or take .1 %."""
    return tuple(
        value + step + jitter for value, jitter in zip(STEADY, (0.001, 0.0, -0.001), strict=True)
    )


def test_what_is_outside_the_noise_is_marked_and_what_is_missing_is_a_dash(tmp_path: Path) -> None:
    scores = {"vanilla": STEADY, "at": shifted(0.05), "r_drop": shifted(0.0)}
    write_study(tmp_path / "text_cnn-imdb", {**scores, "uegr": shifted(-0.05)})
    write_study(tmp_path / "text_cnn-tnews", scores)
    found = grid(reproduction_table(read_specification("uegr-table-4"), tmp_path))
    assert found.splitlines() == [
        "| case | vanilla | at | r_drop | uegr |",
        "|---|---|---|---|---|",
        "| text\\_cnn-imdb | 82.00 ± 2.00 | **87.00 ± 1.90** | 82.00 ± 1.90 | *77.00 ± 1.90* |",
        "| text\\_cnn-tnews | 82.00 ± 2.00 | **87.00 ± 1.90** | 82.00 ± 1.90 | – |",
        "| mean of 2 cases | 82.00 ± 2.00 | **87.00 ± 1.90** | 82.00 ± 1.90 | – |",
    ]


def test_many_methods_are_a_line_each(tmp_path: Path) -> None:
    read = read_specification("uegr-figure-3")
    names = [column.name for column in read.columns()][: WIDE + 1]
    write_study(tmp_path / "sst2", dict.fromkeys(names, STEADY))
    lines = grid(reproduction_table(read, tmp_path)).splitlines()
    assert lines[0] == "| method | accuracy (%) |"
    assert [line.split(" | ")[0] for line in lines[2:]] == [f"| {name}" for name in names]


def test_a_document_holds_the_kept_tables_with_their_commands(tmp_path: Path) -> None:
    text = "".join(
        f"<!-- {name} -->\n<!-- /{name} -->\n"
        for name in ("claims", "reproductions", "arithmetic", "tables")
    )
    assert "No scores are kept." in rewrite(text, tmp_path)
    kept = tmp_path / "results" / "uegr-table-4"
    write_study(kept / "text_cnn-imdb", {"vanilla": STEADY, "uegr": shifted(0.05)})
    found = rewrite(text, tmp_path)
    assert "1 of 12 cases: accuracy (%), text\\_cnn." in found
    assert "`temper reproduce uegr-table-4 --from results/uegr-table-4`" in found
    assert "| 82.00 ± 2.00 | **87.00 ± 1.90** |" in found
    assert rewrite(found, tmp_path) == found
