"""Reading files of every format, and one clear error for each kind of damage."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path

import pyarrow
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from temper.data.formats import read_table
from temper.data.table import Table
from temper.errors import DataError

ROWS = [
    {"text": 'He said "fine, thanks"', "label": "1"},
    {"text": "two\nlines, and a comma", "label": "0"},
    {"text": "NA", "label": "1"},
    {"text": "naïve — 好", "label": "0"},
]


def columns(table: Table) -> dict[str, list[object]]:
    return {name: list(table.column(name)) for name in table.names}


def as_csv(delimiter: str) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, ["text", "label"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(ROWS)
    return out.getvalue().encode()


def as_parquet() -> bytes:
    out = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), out)
    return out.getvalue()


CONTENT = {
    "a.csv": as_csv(","),
    "a.tsv": as_csv("\t"),
    "a.jsonl": "\n".join(json.dumps(row) for row in ROWS).encode(),
    "a.json": json.dumps(ROWS).encode(),
    "b.json": json.dumps({name: [row[name] for row in ROWS] for name in ROWS[0]}).encode(),
    "a.parquet": as_parquet(),
}


@pytest.mark.parametrize("name", CONTENT)
@pytest.mark.parametrize("zipped", [False, True])
def test_every_format_is_read_into_the_same_table(tmp_path: Path, name: str, zipped: bool) -> None:
    path = tmp_path / (f"{name}.gz" if zipped else name)
    path.write_bytes(gzip.compress(CONTENT[name]) if zipped else CONTENT[name])
    assert columns(read_table(path)) == {
        "text": [row["text"] for row in ROWS],
        "label": [row["label"] for row in ROWS],
    }


def test_the_source_contains_the_hash_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"text\nx\n")
    # printf 'text\nx\n' | sha256sum
    expected = "fa619eeb414a6b8d2c5c7fef33eaddbdec5ecab72328bc1940d6e89f4c075c6c"
    assert read_table(path).source["sha256"] == expected


def test_a_line_separator_inside_a_json_text_ends_no_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one\u2028two\x85three"}\n', encoding="utf-8")
    assert columns(read_table(path)) == {"text": ["one\u2028two\x85three"]}


def test_lines_are_counted_through_quoted_line_breaks_and_blank_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(CONTENT["a.csv"])
    assert read_table(path).where(2).endswith("a.csv, line 5")
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n\n{"text": "b"}\n')
    assert read_table(path).where(1).endswith("a.jsonl, line 3")


def test_a_text_longer_than_the_csv_module_allows_is_read(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    path = tmp_path / "a.csv"
    path.write_bytes(b"text\n" + b"x" * 200_000 + b"\n")
    assert len(str(next(iter(read_table(path).column("text"))))) == 200_000
    assert csv.field_size_limit() == before


def test_class_names_in_a_parquet_file_are_found(tmp_path: Path) -> None:
    info = {"info": {"features": {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}}}
    table = pyarrow.table({"text": ["a"], "label": [1]})
    table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert read_table(tmp_path / "a.parquet").label_names == {"label": ("no", "yes")}


BROKEN = {
    "empty": ("a.csv", b"", "a.csv is empty"),
    "only white space": ("a.jsonl", b" \n\n", "a.jsonl is empty"),
    "header alone": ("a.csv", b"text,label\n", "header but no rows"),
    "no header": ("a.csv", b",\na,0\n", "line 1: .*must name the columns"),
    "an empty field alone": ("a.csv", b'""', "line 1: .*must name the columns"),
    "a blank line alone before a header alone": ("a.csv", b"\ntext\n", "header but no rows"),
    "too many fields": (
        "a.csv",
        b"text,label\na,0\nb,c,1\n",
        r"line 3: expected 2 fields .* got 3",
    ),
    "too few fields": ("a.tsv", b"text\tlabel\na\n", r"line 2: expected 2 fields .* got 1"),
    "open quote": ("a.csv", b'text,label\na,0\n"b,1\nc,0\n', "line 3: the quotes do not close"),
    "twice a column": ("a.csv", b"text,label,text\na,0,b\n", "duplicate columns: 'text'"),
    "not UTF-8": ("a.csv", b"text\nok\ncaf\xe9\n", r"line 3: byte 0xe9 at offset 11 is not UTF-8"),
    "cut UTF-16": ("a.csv", "text\na\n".encode("utf-16")[:-1], "is not utf-16"),
    "broken JSON line": ("a.jsonl", b'{"text": "a"}\n{"text": \n', "line 2: not valid JSON"),
    "list in JSON lines": ("a.jsonl", b'["a"]\n', "line 1: expected an object .* got list"),
    "twice a key": (
        "a.jsonl",
        b'{"text": "a", "text": "b"}',
        "line 1: .*duplicate columns: 'text'",
    ),
    "deep JSON": ("a.json", b"[" * 100_000, "JSON cannot be read"),
    "huge number": ("a.jsonl", b'{"label": ' + b"9" * 5000 + b"}", "line 1: JSON cannot be read"),
    "JSON lines called JSON": ("a.json", b'{"text": "a"}\n{"text": "b"}\n', "not valid JSON"),
    "JSON number": ("a.json", b"3", "expected a list of objects"),
    "JSON list of numbers": ("a.json", b"[1]", "row 1: expected an object, got int"),
    "JSON without rows": ("a.json", b"[]", "a.json has no rows"),
    "uneven JSON columns": ("a.json", b'{"a": [1], "b": []}', "columns must have equal lengths"),
    "cut gzip": ("a.csv.gz", gzip.compress(b"text\n" + b"word\n" * 99)[:-12], "is cut short"),
    "no gzip": ("a.csv.gz", b"text\na\n", "not a whole gzip"),
    "damaged gzip": ("a.csv.gz", gzip.compress(b"text\na")[:-8] + b"\0" * 8, "not a whole gzip"),
    "no Parquet": ("a.parquet", b"text\na\n", "not a whole Parquet"),
    "cut Parquet": ("a.parquet", as_parquet()[:-20], "not a whole Parquet"),
    "zip archive called CSV": ("a.csv", b"PK\x03\x04...", "not a text file"),
    "program called CSV": ("a.csv", b"\x7fELF\x02\x01\0\0\0\0", "not a text file"),
    "missing": ("a.csv", None, "No such file: "),
    "unknown format": ("a.xlsx", b"x", "must end with one of .csv"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_raises_one_clear_error(tmp_path: Path, case: str) -> None:
    name, content, message = BROKEN[case]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_table(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize("column", ["text", "label"])
def test_a_parquet_file_whose_texts_are_no_utf_8_is_an_error(tmp_path: Path, column: str) -> None:
    raw = pyarrow.array([b"good", b"\xff"])
    words = pyarrow.StringArray.from_buffers(2, raw.buffers()[1], raw.buffers()[2])
    parquet.write_table(pyarrow.table({column: words}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet.*utf-8"):
        list(read_table(tmp_path / "a.parquet").column(column))


def test_a_parquet_file_whose_names_are_no_utf_8_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["a"], "label": [0]}), path)
    path.write_bytes(path.read_bytes().replace(b"label", b"l\xaebel"))
    with pytest.raises(DataError, match=r"a\.parquet .*whole Parquet file .*utf-8"):
        read_table(path)


def test_a_parquet_file_without_rows_or_with_one_name_twice_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": pyarrow.array([], pyarrow.string())}), path)
    with pytest.raises(DataError, match="has no rows"):
        read_table(path)
    arrays = [pyarrow.array(["a"]), pyarrow.array(["b"])]
    parquet.write_table(pyarrow.Table.from_arrays(arrays, ["text", "text"]), path)
    with pytest.raises(DataError, match="duplicate columns: 'text'"):
        read_table(path)


# Any bytes at all: a table, or a DataError; nothing else may come out.
@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "json", "parquet", "csv.gz"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=80)
    | st.text('",\t\n\r{}[]:0a é\u2028', max_size=60).map(str.encode)
    | st.text('",\t\n\r{}[]:0a', max_size=60).map(lambda text: f"text,label\n{text}".encode())
)
@example(content=b'"')
@example(content=b"a\n\r")
def test_any_bytes_are_read_or_raise_a_data_error(
    tmp_path: Path, suffix: str, content: bytes
) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    try:
        table = read_table(path)
    except DataError as caught:
        message = str(caught)
    else:
        assert table.size >= 1
        assert all(len(list(table.column(name))) == table.size for name in table.names)
        return
    assert str(path) in message


FIELD = st.text(st.characters(codec="utf-8"), max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(FIELD, min_size=1, max_size=5), ascii_only=st.booleans())
def test_json_files_round_trip(tmp_path: Path, texts: list[str], ascii_only: bool) -> None:
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": text}, ensure_ascii=ascii_only) for text in texts]
    path.write_text("\n".join(lines), encoding="utf-8", newline="")
    assert columns(read_table(path)) == {"text": texts}
