"""Read CSV, TSV, JSON lines, JSON and Parquet, plain or gzipped; every fault is one `DataError`.

The standard library's parsers are used for text because they tell the line of a fault and guess
nothing: table libraries turn a text "NA" or "null" into a missing value and a column of digits
    into numbers.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from temper.data.content import TextFile, decode, read_bytes
from temper.data.content import first_line as first_line
from temper.data.content import read_text as read_text
from temper.data.table import Streamed, Table
from temper.errors import DataError

# Rows of a Parquet file that are there as Python's objects at a time.
_BATCH = 4096
FORMATS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
# One field of RFC 4180 with tabs: quoted as a whole, or free of quotes.
_QUOTED_FIELDS = re.compile(r'(?:"(?:[^"]|"")*"|[^"\t\r\n]*)(?:\t|\r\n|\r|\n|\Z)')


def format_of(path: Path) -> str | None:
    """Return the format of a file name, ``.csv`` for ``train.csv.gz``; None where it has none."""
    name = path.name.lower().removesuffix(".gz")
    return next((suffix for suffix in FORMATS if name.endswith(suffix)), None)


def stem_of(path: Path) -> str:
    """Return a file's name without format and ``.gz``: ``train`` for ``train.jsonl.gz``."""
    name = path.name[: -len(".gz")] if path.name.lower().endswith(".gz") else path.name
    return name[: -len(format_of(path) or "")] or name


def read_table(path: Path) -> Table:
    """Read a file as a table.

    Args:
        path: A file in one of `FORMATS`, plain or with ``.gz`` behind.

    Returns:
        The table, with the file's sha256 in its source.

    Raises:
        DataError: If the file is missing, empty, damaged, or not what its name says.
    """
    suffix = format_of(path)
    if suffix is None:
        wanted = ", ".join(FORMATS)
        raise DataError(f"{path}: the name must end with one of {wanted} (or one of them and .gz).")
    empty = DataError(f"{path} is empty: expected at least a header and one row.")
    if suffix in (".parquet", ".json"):
        raw, sha256 = read_bytes(path)
        if not raw.strip():
            raise empty
        source = {"path": str(path), "sha256": sha256}
        if suffix == ".parquet":
            return _parquet(raw, path=path, source=source)
        text = decode(raw, path=path)
        if not text.strip():
            raise empty
        return _json(text, path=path, source=source)
    content = TextFile(path)
    source = content.source()
    if content.blank():
        raise empty
    if suffix in (".jsonl", ".ndjson"):
        return _json_lines(content, source=source)
    return _delimited(content, source=source, delimiter="\t" if suffix == ".tsv" else ",")


def read_json_lines(path: Path) -> Table:
    """Read a file of one JSON object a line, whatever its name ends with.

    Args:
        path: The file.

    Returns:
        The table, with the file's sha256 in its source.

    Raises:
        DataError: If it is missing, empty, or a line is no object.
    """
    content = TextFile(path)
    source = content.source()
    if content.blank():
        raise DataError(f"{path} is empty: expected rows.")
    return _json_lines(content, source=source)


def _table(
    rows: Sequence[dict[str, object]],
    *,
    title: str,
    source: dict[str, str],
) -> Table:
    """Turn objects into columns; an object without a key has None there."""
    names = tuple(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    return Table(title, names, columns.__getitem__, len(rows), source=source)


def _check_names(names: Sequence[str], *, title: str) -> None:
    """Refuse a name that stands twice; empty ones (a nameless index) cannot be chosen anyway."""
    twice = [name for name, count in Counter(names).items() if name and count > 1]
    if twice:
        raise DataError(
            f"{title} has duplicate columns: {', '.join(map(repr, twice))}. Rename or remove one."
        )


def _delimited(content: TextFile, *, source: dict[str, str], delimiter: str) -> Table:
    path = content.path
    plain = delimiter == "\t" and _has_plain_quotes(content)

    def opened() -> Iterator[tuple[int, list[str]]]:
        if plain:
            return _plain(content.lines())
        return _quoted_records(content, delimiter=delimiter)

    records = opened()
    _, names = next(records)
    names = [name.strip() for name in names]
    if not any(names):
        raise DataError(f"{path}, line 1: the first line must name the columns, got none.")
    _check_names(names, title=str(path))
    lines = array("q")
    blank: int | None = None
    for line, record in records:
        if not record:
            blank = blank or line
            continue
        # Blank lines at the end are harmless; one in the middle may be a lost or an empty row.
        if blank is not None or len(record) != len(names):
            came = "a blank line" if blank is not None else f"{len(record)} fields"
            raise DataError(
                f"{path}, line {blank or line}: expected {len(names)} fields "
                f"({', '.join(names)}), got {came}. Quote a text that holds the delimiter or a "
                "line break."
            )
        lines.append(line)
    if not lines:
        raise DataError(f"{path} has a header but no rows.")

    def column(name: str) -> Streamed:
        place = names.index(name)
        return Streamed(lambda: (own[place] for _, own in islice(opened(), 1, None) if own))

    return Table(str(path), tuple(names), column, len(lines), lines, source=source)


def _quoted_records(content: TextFile, *, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line on which each record starts, and its fields."""
    reader = csv.reader(content.lines(), delimiter=delimiter, strict=True)
    start = 1
    while True:
        # The limit is the process's; a long document is no fault: it is lifted for this record.
        before = csv.field_size_limit(sys.maxsize)
        try:
            record = next(reader, None)
        except csv.Error as error:
            raise DataError(
                f"{content.path}, line {start}: the quotes do not close ({error}). "
                "Close each quoted field with a quote, and double the quotes inside it."
            ) from None
        finally:
            csv.field_size_limit(before)
        if record is None:
            return
        yield start, record
        start = reader.line_num + 1


def plain_records(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield tab-separated lines whose quotes mean nothing, as GLUE's files have them.

    Args:
        text: A file's content.

    Yields:
        Number of the line, from 1, and its fields; none for a blank line.
    """
    yield from _plain(found.group() for found in _LINE.finditer(text))


def _plain(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the fields of lines whose quotes mean nothing."""
    for number, line in enumerate(lines, start=1):
        content = line.rstrip("\r\n")
        yield number, content.split("\t") if content else []


def _has_plain_quotes(content: TextFile) -> bool:
    """Say whether a TSV has quotes that are plain characters, for which it is read whole."""
    if not any('"' in line for line in content.lines()):
        return False
    return not _tabs_are_quoted("".join(content.lines()))


def _tabs_are_quoted(text: str) -> bool:
    """Say whether all quotes of a TSV read as RFC 4180; in GLUE they are plain characters."""
    position = 0
    while position < len(text):
        found = _QUOTED_FIELDS.match(text, position)
        if found is None or found.end() == position:
            return False
        position = found.end()
    return True


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise ValueError(f"duplicate columns: {twice!r}")
    return dict(pairs)


def _parse_json(text: str, *, where: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}: not valid JSON ({error.msg}, column {error.colno}). Mend or remove it."
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: JSON cannot be read ({error}). Mend or remove it.") from None


def _json_lines(content: TextFile, *, source: dict[str, str]) -> Table:
    path = content.path
    names: dict[str, None] = {}
    lines = array("q")
    for number, line in _full_lines(content):
        row = _parse_json(line, where=f"{path}, line {number}")
        if not isinstance(row, dict):
            raise DataError(
                f'{path}, line {number}: expected an object such as {{"text": "...", "label": 0}}, '
                f"got {type(row).__name__}."
            )
        names |= dict.fromkeys(row)
        lines.append(number)

    def column(name: str) -> Streamed:
        return Streamed(lambda: (json.loads(line).get(name) for _, line in _full_lines(content)))

    return Table(str(path), tuple(names), column, len(lines), lines, source=source)


def _full_lines(content: TextFile) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank and their numbers, from 1."""
    # Only "\n" ends a line: str.splitlines would also cut at U+2028, which texts hold.
    for number, line in enumerate(content.lines(newline="\n"), start=1):
        if line.strip():
            yield number, line.removesuffix("\n")


def _json(text: str, *, path: Path, source: dict[str, str]) -> Table:
    content = _parse_json(text, where=str(path))
    if isinstance(content, dict) and content and all(isinstance(v, list) for v in content.values()):
        columns: dict[str, list[object]] = content
        sizes = {name: len(values) for name, values in columns.items()}
        if len(set(sizes.values())) != 1:
            raise DataError(f"{path}: columns must have equal lengths, got {sizes}.")
        size = next(iter(sizes.values()))
        table = Table(str(path), tuple(columns), columns.__getitem__, size, source=source)
    elif isinstance(content, list):
        for number, row in enumerate(content, start=1):
            if not isinstance(row, dict):
                raise DataError(
                    f"{path}, row {number}: expected an object, got {type(row).__name__}."
                )
        table = _table(content, title=str(path), source=source)
    else:
        raise DataError(
            f"{path}: expected a list of objects, or one object whose values are lists (columns). "
            "Name the file .jsonl if it holds one object a line."
        )
    if not table.size:
        raise DataError(f"{path} has no rows.")
    return table


def _parquet(raw: bytes, *, path: Path, source: dict[str, str]) -> Table:
    # Slow to import, and most runs read text files.
    import pyarrow
    from pyarrow import parquet

    def broken(error: Exception) -> DataError:
        reason = str(error).splitlines()[0]
        return DataError(f"{path} is not a whole Parquet file ({reason}). Write it again.")

    try:
        file = parquet.ParquetFile(pyarrow.BufferReader(raw))
        schema, rows = file.schema_arrow, file.metadata.num_rows
    except (pyarrow.ArrowException, OSError) as error:
        raise broken(error) from None
    _check_names(schema.names, title=str(path))
    if not rows:
        raise DataError(f"{path} has no rows.")

    def column(name: str) -> Iterator[object]:
        try:
            for batch in file.iter_batches(_BATCH, columns=[name], use_threads=False):
                yield from batch.column(name).to_pylist()
        except (pyarrow.ArrowException, OSError) as error:
            raise broken(error) from None

    classes = _class_names(schema.metadata or {})
    return Table(
        str(path),
        tuple(schema.names),
        lambda name: Streamed(lambda: column(name)),
        rows,
        label_names=classes,
        source=source,
    )


def _class_names(metadata: dict[bytes, bytes]) -> dict[str, tuple[str, ...]]:
    """Read the ClassLabel names that the `datasets` library leaves in a Parquet file's metadata."""
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
        return {
            name: tuple(map(str, feature["names"]))
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        # The entry is another program's note; without it the file reads as any other Parquet file.
        return {}
