"""Files are read line by line; stored texts and hashes behave like lists."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import os
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.data import stored
from temper.data.content import TextFile
from temper.data.examples import Examples
from temper.data.sources import load_examples
from temper.data.stored import RowHashes, StoredBytes, StoredTexts, values_at
from temper.errors import DataError

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=12)


@contextmanager
def kept(in_memory: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "IN_MEMORY", in_memory)
        yield


def is_on_disk(content: StoredBytes) -> bool:
    return content._file is not None


def row_hash(text: str, text_pair: str | None = None) -> str:
    whole = "".join(f"{len(each)}:{each}" for each in (text, text_pair) if each is not None)
    return hashlib.blake2b(whole.encode(), digest_size=8).hexdigest()


@given(TEXTS, st.sampled_from([0, 5, 1 << 20]), st.data())
def test_stored_texts_are_the_list_they_were_made_of(
    texts: list[str], in_memory: int, data: st.DataObject
) -> None:
    with kept(in_memory):
        result = StoredTexts.of(iter(texts))
    assert is_on_disk(result._content) == (sum(len(text.encode()) for text in texts) > in_memory)
    assert result == texts
    assert texts == result
    assert list(result) == texts
    assert [result[index] for index in range(len(texts))] == texts
    if texts:
        indices = data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=9))
        wanted = [texts[index] for index in indices]
        assert list(values_at(result, indices)) == wanted == values_at(texts, indices)
        assert list(values_at(result, indices)[1:]) == wanted[1:]
        assert result != [*texts[:-1], texts[-1] + "x"]
        assert result[-1] == texts[-1]


@pytest.mark.parametrize("size", [254, 255, 256, 65_534, 65_535, 65_536, 70_000])
def test_stored_texts_round_trip_for_any_total_size(size: int) -> None:
    # One byte holds up to 255, two hold up to 65,535.
    texts = ["a" * (size - 200), "b" * 199, "c"]
    result = StoredTexts.of(texts)
    assert list(result) == texts
    assert list(result.at([2, 0, 1])) == [texts[2], texts[0], texts[1]]


@given(st.lists(st.binary(max_size=9)), st.integers(0, 20))
def test_stored_bytes_are_read_from_their_position(parts: list[bytes], limit: int) -> None:
    content, spans = StoredBytes(), []
    for part in parts:
        spans.append((content.size, content.size + len(part)))
        with kept(limit):
            content.append(part)
        assert content.read(*spans[0]) == parts[0]
    assert [content.read(*index) for index in spans] == parts
    assert is_on_disk(content) == (content.size > limit)


def test_a_folder_without_room_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stored.tempfile, "TemporaryFile", full)
    message = r"cannot take them: No space left on device\. Make room"
    with kept(0), pytest.raises(DataError, match=message):
        StoredTexts.of(["good"])


def test_a_system_without_pread_reads_the_same_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "pread", raising=False)
    with kept(0):
        result = StoredTexts.of(["good", "naïve", "bad"])
    assert list(result) == ["good", "naïve", "bad"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that are forked")
def test_a_forked_process_reads_the_same_texts() -> None:
    with kept(0):
        result = StoredTexts.of([f"text {number}" for number in range(50)])
    reader, writer = os.pipe()
    if not (child := os.fork()):
        os.write(writer, result[7].encode())
        os._exit(0)
    assert [result[index] for index in range(50)][7] == "text 7"
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"text 7"


@pytest.fixture(params=[0, 1 << 20], ids=["on disk", "in memory"])
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(stored, "IN_MEMORY", request.param)
    return int(request.param)


def test_a_set_of_a_file_is_the_set_of_its_lists(tmp_path: Path, limit: int) -> None:
    texts, seconds = ["good", "naïve", "bad"], ["x", "y", "z"]
    lines = [
        f"{a},{b},{index % 2}" for index, (a, b) in enumerate(zip(texts, seconds, strict=True))
    ]
    (tmp_path / "set.csv").write_text("\n".join(["text,text_pair,label", *lines]), "utf-8")
    result = load_examples(str(tmp_path / "set.csv"))
    plain = Examples("set", texts, seconds, labels=[0, 1, 0], kind="classification")
    assert isinstance(result.text, StoredTexts)
    assert is_on_disk(result.text._content) == (limit == 0)
    assert (result.text, result.text_pair, result.rows) == (texts, seconds, plain.rows)
    assert result.hash == plain.hash
    chosen = result.select([2, 0])
    assert (chosen.text, chosen.text_pair) == (["bad", "good"], ["z", "x"])
    assert chosen.rows == plain.select([2, 0]).rows


@given(TEXTS, st.data())
def test_stored_hashes_equal_the_hashes_of_the_texts(texts: list[str], data: st.DataObject) -> None:
    result, wanted = RowHashes.of(texts), [row_hash(text) for text in texts]
    assert list(result) == wanted
    assert [result[index] for index in range(len(texts))] == wanted
    assert result == wanted
    assert wanted == result
    assert set(result) == set(wanted)
    assert result[1:] == wanted[1:]
    assert result != [*wanted, "0" * 16]
    if texts:
        assert result[-1] == wanted[-1]
        assert result != [*wanted[:-1], "another"]
        indices = data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=9))
        assert values_at(result, indices) == [wanted[index] for index in indices]
        assert values_at(wanted, indices) == [wanted[index] for index in indices]


def test_hashes_of_pairs_depend_on_the_end_of_the_first_text() -> None:
    result = RowHashes.of(["ab", "a"], ["c", "bc"])
    assert list(result) == [row_hash("ab", "c"), row_hash("a", "bc")]
    assert len({*result, row_hash("abc"), row_hash("abc", "")}) == 4


def test_a_hash_keeps_its_leading_zeros() -> None:
    # The first text of this form whose hash begins with a zero.
    text = next(text for text in map(str, range(1000)) if row_hash(text).startswith("0"))
    assert RowHashes.of([text])[0] == row_hash(text)
    assert len(RowHashes.of([text])[0]) == 16


def test_a_string_is_no_sequence_of_hashes() -> None:
    assert RowHashes.of([]) != ""


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
def test_reading_a_file_uses_memory_independent_of_its_text_length(
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
            result = load_examples(str(path))
            assert sum(map(len, result.text)) >= ROWS * letters
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


def test_a_late_fault_in_a_file_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,label\n" + b"good,1\n" * 50_000 + b"\xff,0\n")
    with pytest.raises(DataError, match=r"a\.csv, line 50002: byte 0xff .* is not UTF-8"):
        load_examples(str(path))
    path = tmp_path / "b.csv.gz"
    path.write_bytes(gzip.compress(b"text,label\n" + b"good,1\n" * 50_000)[:-9])
    with pytest.raises(DataError, match=r"b\.csv\.gz is cut short"):
        load_examples(str(path))
