"""Texts that attacks found for training rows: their file, and how they take rows' places."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from temper.data.attacked import SCHEMA, AttackedText, AttackedTexts
from temper.data.examples import Examples, row_hash
from temper.errors import CheckpointError


def found() -> AttackedTexts:
    single = AttackedText(
        "swaps", row_hash("a good film"), "a good film", None, "a fine film", None, 1 / 3, 7
    )
    pair = AttackedText("characters", row_hash("one", "two"), "one", "two", "onne", "two", 0.5, 9)
    counts = {"swaps": {"attacked": 2, "changed": 1, "queries": 12}}
    return AttackedTexts((single, pair), counts, ("One of two.",))


def test_a_file_gives_back_what_was_written_and_has_the_documented_columns(tmp_path: Path) -> None:
    found().write(tmp_path / "attacked.parquet")
    assert AttackedTexts.read(tmp_path / "attacked.parquet") == found()
    table = pq.read_table(tmp_path / "attacked.parquet")
    assert table.schema.equals(SCHEMA)
    assert [file.name for file in tmp_path.iterdir()] == ["attacked.parquet"]
    AttackedTexts(()).write(tmp_path / "none.parquet")
    assert AttackedTexts.read(tmp_path / "none.parquet") == AttackedTexts(())


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    for content in (b"", b"PAR1 and nothing else"):
        (tmp_path / "broken.parquet").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"broken\.parquet cannot be read .*--restart"):
            AttackedTexts.read(tmp_path / "broken.parquet")
    table = pq.read_table(_written(tmp_path)).replace_schema_metadata(None)
    pq.write_table(table, tmp_path / "foreign.parquet")
    with pytest.raises(CheckpointError, match=re.escape("foreign.parquet cannot be read")):
        AttackedTexts.read(tmp_path / "foreign.parquet")


def _written(folder: Path) -> Path:
    found().write(folder / "attacked.parquet")
    return folder / "attacked.parquet"


def test_rows_get_the_text_of_the_recipe_that_is_asked_and_others_stay() -> None:
    rows = Examples("train", ["a bad film", "a good film"])
    changed = found().of("swaps").rewritten(rows, seed=0)
    assert list(changed.text) == ["a bad film", "a fine film"]
    assert list(changed.rows) == [row_hash("a bad film"), row_hash("a fine film")]
    assert list(found().of("characters").rewritten(rows, seed=0).text) == list(rows.text)
    pairs = Examples("train", ["one", "one"], ["three", "two"])
    changed = found().of("characters").rewritten(pairs, seed=0)
    assert list(zip(changed.text, changed.text_pair, strict=True)) == [
        ("one", "three"),
        ("onne", "two"),
    ]
