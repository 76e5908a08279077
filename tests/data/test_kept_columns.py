"""Columns of text files that are kept in the pass that checks the file, or read from it again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from temper.data.formats import read_table
from temper.data.table import TableOptions

VALUES = st.none() | st.integers() | st.text(st.characters(exclude_categories=())) | st.booleans()
NAMES = st.sampled_from(["text", "label", "Premise", "stars", "notes", "group"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(NAMES, VALUES, min_size=1), min_size=1), st.booleans())
def test_a_kept_column_has_the_values_of_the_file(
    tmp_path: Path, rows: list[dict[str, object]], others: bool
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    table = read_table(path, TableOptions(named=frozenset({"stars"}), others=others))
    for name in table.names:
        assert list(table.column(name)) == [row.get(name) for row in rows]


@pytest.mark.parametrize(
    ("name", "content"),
    [("rows.csv", "text,label\na,x\n"), ("rows.jsonl", '{"text": "a", "label": "x"}\n')],
)
def test_a_column_with_a_usual_name_is_not_read_again(
    tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    table = read_table(tmp_path / name)
    (tmp_path / name).unlink()
    assert [list(table.column(column)) for column in table.names] == [["a"], ["x"]]
