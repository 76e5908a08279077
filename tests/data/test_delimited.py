"""Delimited text: detected delimiter and encoding, and counts of blank and bad lines."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from temper.data.columns import Columns
from temper.data.content import known_encoding
from temper.data.formats import read_table
from temper.data.sources import load_examples
from temper.data.table import Table, TableOptions
from temper.errors import DataError
from tests.data.task_files import splits_of

SKIPPING = TableOptions(skip_bad_rows=True)


def write(folder: Path, content: str | bytes, name: str = "a.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def rows(table: Table) -> list[tuple[object, ...]]:
    return list(zip(*(table.column(name) for name in table.names), strict=True))


@pytest.mark.parametrize(
    ("content", "sign"),
    [
        ("text;label\nwell, well;1\nso, so, so;0\n", "';'"),
        ("text\tlabel\nwell, well\t1\nso; so\t0\n", "tabs"),
        ("text|label\nwell, well|1\nso; so|0\n", "'|'"),
        ('"text";"label"\n"well; well";"1"\n"so\nso";"0"\n', "';'"),
        ("\n\ntext;label\nwell, well;1\n", "';'"),
    ],
)
def test_another_delimiter_is_detected_and_reported(
    tmp_path: Path, content: str, sign: str
) -> None:
    table = read_table(write(tmp_path, content))
    assert table.names == ("text", "label")
    assert len(rows(table)[0]) == 2
    assert table.notices[0] == f"{table.title}: read with {sign} between columns."


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("text,label\na; b,1\nc;d,0\n", ("text", "label")),
        ('text,label\n"a;b\n;c",1\n', ("text", "label")),
        ("text\nI came; I saw\nand left; then, at last\n".replace(", at", " at"), ("text",)),
        ("id,first;second\n1,a;b\n2,c;d\n", ("id", "first;second")),
    ],
)
def test_a_comma_has_priority_over_other_delimiters(
    tmp_path: Path, content: str, names: tuple[str, ...]
) -> None:
    table = read_table(write(tmp_path, content))
    assert table.names == names
    assert table.notices == ()


def test_a_tsv_with_commas_or_bare_quotes_is_split_at_tabs(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, 'a\tb\n"x, y\t1\nz, "w"\t2\n', "a.tsv"))
    assert rows(table) == [('"x, y', "1"), ('z, "w"', "2")]
    assert table.notices == ()


def test_errors_of_a_file_with_semicolons_name_its_columns(tmp_path: Path) -> None:
    assert read_table(write(tmp_path, "a;b\nx;1\n", "a.tsv")).names == ("a", "b")
    path = write(tmp_path, "text;label\na;1\nb\nc;0\nd;1\n")
    with pytest.raises(DataError, match=r"line 3: expected 2 fields \(text, label\), got 1 field"):
        read_table(path)


LINE = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=12)
FIELD = st.text(st.characters(codec="utf-8"), max_size=12)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    plain=st.lists(st.tuples(LINE, LINE), min_size=1, max_size=5),
    quoted=st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=5),
)
def test_quoted_csv_files_round_trip(
    tmp_path: Path, delimiter: str, plain: list[tuple[str, str]], quoted: list[tuple[str, str]]
) -> None:
    for lines, quoting in ((plain, csv.QUOTE_MINIMAL), (quoted, csv.QUOTE_ALL)):
        out = io.StringIO()
        writer = csv.writer(out, delimiter=delimiter, quoting=quoting)
        writer.writerows([("text", "other"), *lines])
        assert rows(read_table(write(tmp_path, out.getvalue()))) == lines


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.text('ab ",', min_size=1, max_size=6), min_size=2, max_size=12),
    label_first=st.booleans(),
    row=st.integers(0, 11),
)
def test_a_stray_quote_never_joins_rows_of_a_tsv(
    tmp_path: Path, texts: list[str], label_first: bool, row: int
) -> None:
    texts = [f"x{text}" for text in texts]
    # An open quote at the start of one text and a closing one at the end of a later one.
    texts[row % len(texts)] = '"' + texts[row % len(texts)].replace('"', "")
    texts[-1] = texts[-1].replace('"', "") + '"'
    lines = [("text", "label"), *((text, "pos") for text in texts)]
    content = "".join(f"{b}\t{a}\n" if label_first else f"{a}\t{b}\n" for a, b in lines)
    table = read_table(write(tmp_path, content, "a.tsv"))
    assert table.size == len(texts)
    assert [str(text).strip('"') for text in table.column("text")] == [
        text.strip('"') for text in texts
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(
        st.text('ab "\n', max_size=8) | st.text('ab "\t', max_size=8), min_size=1, max_size=8
    ),
    columns=st.integers(2, 3),
)
def test_a_tsv_whose_fields_are_quoted_reads_back(
    tmp_path: Path, texts: list[str], columns: int
) -> None:
    lines = [(f"x{text}", *(["pos"] * (columns - 1))) for text in texts]
    for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL):
        out = io.StringIO()
        writer = csv.writer(out, delimiter="\t", quoting=quoting)
        writer.writerows([("text", "label", "other")[:columns], *lines])
        assert rows(read_table(write(tmp_path, out.getvalue(), "a.tsv"))) == lines


def test_quotes_that_could_join_the_rows_of_a_tsv_are_reported(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, 'text\tlabel\n"a\tx\nb\ty\nc"\tx\n', "a.tsv"))
    assert rows(table) == [('"a', "x"), ("b", "y"), ('c"', "x")]
    (message,) = table.notices
    assert "join 2 lines" in message
    assert "line 2" in message
    # The header shows that quotes enclose fields, and the same rows are one.
    table = read_table(write(tmp_path, '"text"\t"label"\n"a\tx\nb\ty\nc"\tx\n', "a.tsv"))
    assert rows(table) == [("a\tx\nb\ty\nc", "x")]
    assert re.search(r"2 rows are probably lost .*line 2 ", " ".join(table.notices))
    # A line that is no row says nothing for quotes where they would join more lines that are.
    path = write(tmp_path, 'text\tlabel\n"a\tx\nb\ty\ntorn\nc"\tx\n', "a.tsv")
    with pytest.raises(DataError, match=r"line 4: expected 2 fields .*quote the names"):
        read_table(path)


def test_rows_of_a_csv_that_quotes_join_are_counted(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, 'text,label\n"a,x\nb,y\nc",x\nd,y\n'))
    assert rows(table) == [("a,x\nb,y\nc", "x"), ("d", "y")]
    (message,) = table.notices
    assert "2 rows are probably lost" in message
    assert "line 2" in message
    # Most texts with line breaks do not look like rows; one that does is no news.
    table = read_table(write(tmp_path, 'text,label\n"a,x\nb",x\n"a\nb",x\n"a\n\nc",y\n'))
    assert (table.size, table.notices) == (3, ())


def test_blank_lines_between_rows_are_skipped_and_counted(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "text,label\na,1\n\n  \nb,0\n\n\n"))
    assert rows(table) == [("a", "1"), ("b", "0")]
    assert table.where(1).endswith("line 5")
    assert table.notices == (f"{table.title}: 2 blank lines are skipped (the first is line 3).",)
    # At the end they are no news.
    assert read_table(write(tmp_path, "text,label\na,1\n\n\n")).notices == ()


def test_a_quoted_empty_text_in_a_file_of_one_column_is_a_row(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, 'text\na\n""\n \n\nb\n'))
    assert rows(table) == [("a",), ("",), (" ",), ("b",)]


def test_a_file_in_another_encoding_raises_an_error_with_the_option(tmp_path: Path) -> None:
    path = write(tmp_path, "text\nun café au lait\n".encode("cp1252"))
    with pytest.raises(
        DataError, match=r"line 2: .*not UTF-8.*data.encoding=cp1252 .*'un café au l"
    ):
        read_table(path)


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "jsonl", "json"])
@pytest.mark.parametrize("encoding", ["cp1252", "iso8859-2", "shift_jis"])
def test_a_named_encoding_is_used_and_reported(tmp_path: Path, suffix: str, encoding: str) -> None:
    word = {"cp1252": "café", "iso8859-2": "źle", "shift_jis": "良い"}[encoding]
    plain = {
        "csv": f"text,label\n{word},1\n",
        "jsonl": json.dumps({"text": word, "label": "1"}, ensure_ascii=False),
        "json": json.dumps([{"text": word, "label": "1"}], ensure_ascii=False),
    }[suffix.split(".")[0]].encode(encoding)
    path = write(tmp_path, gzip.compress(plain) if suffix.endswith("gz") else plain, f"a.{suffix}")
    table = read_table(path, TableOptions(encoding=encoding))
    assert rows(table) == [(word, "1")]
    assert table.notices == (f"{path}: read with encoding {encoding}.",)


@pytest.mark.parametrize("mark", [codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF8])
def test_a_byte_order_mark_sets_the_encoding(tmp_path: Path, mark: bytes) -> None:
    encoding = {
        codecs.BOM_UTF16_LE: "utf-16-le",
        codecs.BOM_UTF16_BE: "utf-16-be",
        codecs.BOM_UTF8: "utf-8",
    }[mark]
    path = write(tmp_path, mark + "text,label\ncafé,1\n".encode(encoding))
    for given_too in (None, "cp1252"):
        table = read_table(path, TableOptions(encoding=given_too))
        assert table.names == ("text", "label")
        assert rows(table) == [("café", "1")]


def test_a_wrong_encoding_raises_an_error_unless_the_file_is_utf_8(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "text\ncafé\n"), TableOptions(encoding="cp1252"))
    assert (rows(table), table.notices) == ([("café",)], ())
    path = write(tmp_path, b"text\nok\nb\x81d\n")
    with pytest.raises(DataError, match="line 3: byte 0x81 at offset 9 is not cp1252"):
        read_table(path, TableOptions(encoding="cp1252"))


def test_an_unknown_encoding_raises_an_error() -> None:
    assert known_encoding("Latin1") == "iso8859-1"
    for name in ("cp-nothing", "base64", "rot13", ""):
        with pytest.raises(ValueError, match="an encoding that Python knows"):
            known_encoding(name)


def test_bad_rows_raise_an_error_with_the_option_that_skips_them(tmp_path: Path) -> None:
    path = write(tmp_path, 'text,label\na,1\nb,1,2\n"c" d,0\ne\nf,0\n"g,1\nh,0\n')
    with pytest.raises(DataError, match=r"line 3: expected 2 fields .*data.skip_bad_rows"):
        read_table(path)
    table = read_table(path, SKIPPING)
    assert rows(table) == [("a", "1"), ("f", "0"), ("h", "0")]
    assert [table.where(row).rpartition(" ")[2] for row in range(3)] == ["2", "6", "8"]
    assert len(table.notices) == 1
    assert "4 bad rows are skipped: line 3 (3 fields), line 4 (quotes" in table.notices[0]
    assert table.notices[0].endswith(", line 5 (1 field), ....")


def test_lines_that_are_no_json_objects_are_skipped_on_request(tmp_path: Path) -> None:
    path = write(tmp_path, '{"text": "a"}\n\n[1]\n{"text": \n{"text": "b"}\n', "a.jsonl")
    table = read_table(path, SKIPPING)
    assert rows(table) == [("a",), ("b",)]
    assert "2 bad rows are skipped: line 3" in table.notices[0]
    path = write(tmp_path, '[{"text": "a"}, 3, {"text": "b"}]', "a.json")
    table = read_table(path, SKIPPING)
    assert rows(table) == [("a",), ("b",)]
    assert table.where(1).endswith("row 3")


def test_no_row_left_is_an_error(tmp_path: Path) -> None:
    for name, content in (("a.csv", "a,b\n1\n2\n"), ("a.jsonl", "3\n"), ("a.json", "[3]")):
        with pytest.raises(DataError, match=f"{name} .*no rows"):
            read_table(write(tmp_path, content, name), SKIPPING)
    path = write(tmp_path, '{"text": null, "label": 1}\n', "a.jsonl")
    with pytest.raises(DataError, match="line 1: .*readable text"):
        load_examples(str(path), reading=SKIPPING)


@pytest.mark.parametrize(
    ("labels", "kept", "lines"),
    [
        (["1", "", "0", "nan", "1"], [1, 0, 1], "line 3 (no label), line 5 (label nan)"),
        (["good", "nan", "bad", " ", "bad"], [1, 0, 0], "line 3 (label nan), line 5 (no label)"),
        (["a", "['a']", "b", "", "a"], [0, 1, 0], "line 3 (a list as label), line 5 (no la"),
        (["0.5", "inf", "1.5", "", "2"], [0.5, 1.5, 2.0], "line 3 (label inf), line 5 (no label)"),
    ],
)
def test_rows_without_a_label_are_skipped_on_request(
    tmp_path: Path, labels: list[str], kept: list[float], lines: str
) -> None:
    content = "".join(f"a{index},{label}\n" for index, label in enumerate(labels))
    path = str(write(tmp_path, f"text,label\n{content}"))
    result = load_examples(path, reading=SKIPPING)
    assert list(result.labels or []) == kept
    assert lines in result.notices[0]
    assert len(result) == len(kept)
    with pytest.raises(DataError, match="data.skip_bad_rows"):
        load_examples(path)


def test_labels_that_a_dataset_does_not_name_are_skipped_on_request(tmp_path: Path) -> None:
    write(tmp_path, '{"label_names": ["no", "yes"]}', "dataset.json")
    path = write(tmp_path, "text,label\na,yes\nb,maybe\nc,no\nd,1\n")
    with pytest.raises(DataError, match=r"mixed types|Unknown label"):
        load_examples(str(path))
    path = write(tmp_path, "text,label\na,yes\nb,maybe\nc,no\n")
    result = load_examples(str(path), reading=SKIPPING)
    assert result.labels == [1, 0]
    assert "line 3 (label 'maybe')" in result.notices[0]
    # Beside a 0 a 2 is no index of two names; alone with 1 it is, counted from 1.
    for content, labels in (("a,0\nb,2\nc,1\n", [0, 1]), ("a,1\nb,2\nc,3\n", [0, 1])):
        path = write(tmp_path, f"text,label\n{content}")
        assert load_examples(str(path), reading=SKIPPING).labels == labels


def test_a_decimal_comma_in_a_file_with_semicolons_is_a_number_and_reported(tmp_path: Path) -> None:
    result = load_examples(str(write(tmp_path, "text;score\na, b;1,5\nc;-,25\nd;3\n")))
    assert result.labels == [1.5, -0.25, 3.0]
    assert result.kind == "regression"
    assert "commas in 'score' are read as decimal points" in " ".join(result.notices)
    # Beside commas it may be two labels.
    result = load_examples(str(write(tmp_path, 'text,score\na,"1,5"\nb,"2,5"\n')))
    assert result.label_names == ("1,5", "2,5")


def test_notices_of_a_file_are_among_those_of_its_splits(tmp_path: Path) -> None:
    lines = "".join(f"naïve {row};{row % 2}\n" for row in range(40))
    path = write(tmp_path, f"text;label\n{lines}\nbad\n".encode("cp1252"))
    result = splits_of(path, encoding="cp1252", skip_bad_rows=True)
    message = " ".join(result.notices)
    assert "read with ';' between columns, encoding cp1252." in message
    assert "1 blank line is skipped (line 42)." in message
    assert "1 bad row is skipped: line 43 (1 field)." in message


def test_columns_of_the_training_file_are_used_if_other_files_have_them(tmp_path: Path) -> None:
    known = (Columns("Description", None, "Queue"),)
    path = write(tmp_path, "text,Description,Queue,label\nx,a,p,1\ny,b,q,0\n")
    result = load_examples(str(path), known=known)
    assert (result.text, result.label_names) == (["a", "b"], ("p", "q"))
    # A label's column that is asked for as text is no label's.
    result = load_examples(str(path), known=known, columns=Columns(text="Queue"), labeled=False)
    assert result.text == ["p", "q"]
    # A name that the caller gives comes first.
    result = load_examples(str(path), known=known, columns=Columns(text="text"))
    assert (result.text, result.label_names) == (["x", "y"], ("p", "q"))
    path = write(tmp_path, "text,label\nx,1\ny,0\n")
    assert load_examples(str(path), known=known).text == ["x", "y"]
    # Half of a known pair is not taken.
    path = write(tmp_path, "question,sentence,A,label\nq,s,a,1\nq,s,a,0\n")
    result = load_examples(str(path), known=(Columns("A", "B"),))
    assert (result.text[0], (result.text_pair or [""])[0]) == ("q", "s")


def test_a_missing_column_names_its_option(tmp_path: Path) -> None:
    path = str(write(tmp_path, "Description,label\nx,1\n"))
    with pytest.raises(DataError, match=r"pass its name with --text-column \(`text_column`\)"):
        load_examples(path)
    with pytest.raises(DataError, match=r"'Queue'.*Known: .* Fix --label-column \(`label_col"):
        load_examples(path, columns=Columns("Description", None, "Queue"))
