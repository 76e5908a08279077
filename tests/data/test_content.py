"""Text files are gone through line by line, and no file is held whole."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.data import stored
from temper.data.content import TextFile
from temper.data.sources import load_examples
from temper.errors import DataError

ROWS = 400


def content_of(form: str, letters: int) -> str:
    rows = [(f"{number} " + "ab" * (letters // 2), number % 2) for number in range(ROWS)]
    if form == "jsonl":
        lines = (json.dumps({"text": text, "label": label}) for text, label in rows)
        return "\n".join(lines)
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter="\t" if form == "tsv" else ",")
    writer.writerows([("text", "label"), *rows])
    return file.getvalue()


@pytest.mark.parametrize("name", ["set.csv", "set.tsv", "set.jsonl", "set.csv.gz"])
def test_reading_a_file_takes_no_memory_that_grows_with_its_letters(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "IN_MEMORY", 1 << 14)
    path = tmp_path / name

    def most(letters: int) -> int:
        content = content_of(name.split(".")[1], letters).encode()
        path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
        del content
        tracemalloc.start()
        try:
            found = load_examples(str(path))
            assert sum(map(len, found.text)) >= ROWS * letters
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    # 7.2 MB more of letters; a line and what is read ahead of it are held a few times.
    assert most(20_000) - most(2_000) < 1.5e6


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), st.booleans())
def test_lines_are_those_of_the_whole_text(
    tmp_path_factory: pytest.TempPathFactory, text: str, packed: bool
) -> None:
    path = tmp_path_factory.mktemp("lines") / ("a.csv.gz" if packed else "a.csv")
    raw = text.encode()
    path.write_bytes(gzip.compress(raw) if packed else raw)
    whole = raw.decode("utf-8-sig")
    assert list(TextFile(path).lines()) == list(io.StringIO(whole, newline=""))
    assert "".join(TextFile(path).lines(newline="\n")) == whole
    assert TextFile(path).blank() == (not whole.strip())


def test_a_fault_behind_what_was_read_names_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,label\n" + b"good,1\n" * 50_000 + b"\xff,0\n")
    with pytest.raises(DataError, match=r"a\.csv, line 50002: byte 0xff .* is not UTF-8"):
        load_examples(str(path))
    path = tmp_path / "b.csv.gz"
    path.write_bytes(gzip.compress(b"text,label\n" + b"good,1\n" * 50_000)[:-9])
    with pytest.raises(DataError, match=r"b\.csv\.gz is cut short"):
        load_examples(str(path))
