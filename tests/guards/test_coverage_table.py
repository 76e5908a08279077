"""The table of lines and branches that tests reach adds up what coverage says of each file."""

from __future__ import annotations

import pytest


def test_packages_add_up_their_files() -> None:
    pytest.importorskip("coverage", reason="needs the extra quality")
    from dev.coverage_table import table

    def counts(lines: int, reached: int, branches: int, taken: int) -> dict[str, dict[str, int]]:
        names = ("num_statements", "covered_lines", "num_branches", "covered_branches")
        numbers = (lines, reached, branches, taken)
        return {"summary": dict(zip(names, numbers, strict=True))}

    files = {
        "src/temper/data/a.py": counts(8, 6, 0, 0),
        "src/temper/data/tasks/b.py": counts(2, 2, 4, 1),
        "src/temper/files.py": counts(10, 5, 0, 0),
    }
    assert [*table(files)][2:] == [
        "| `data` | 10 | 80.0 % | 4 | 25.0 % |",
        "| `temper` | 10 | 50.0 % | 0 | |",
        "| all | 20 | 65.0 % | 4 | 25.0 % |",
    ]
