"""Read CSV, TSV, JSON lines, JSON and Parquet, plain or gzipped; faults are `DataError`s.

Text is parsed by the standard library, which gives the line of a fault and does not guess types.
Table libraries turn a text "NA" or "null" into a missing value, and a column of digits into
numbers.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from temper.data.columns import KeptColumns
from temper.data.content import TextFile, read_bytes
from temper.data.delimited import check_names, read_delimited
from temper.data.table import Table, TableOptions
from temper.errors import DataError

# Rows of a Parquet file that exist as Python objects at a time.
_BATCH = 4096
# Bytes of a Parquet file that are read at a time.
_READ = 1 << 16
FORMATS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")


def format_of(path: Path) -> str | None:
    """Return the format of a file by its name: ``.csv`` for ``train.csv.gz``; None if unknown."""
    name = path.name.lower().removesuffix(".gz")
    return next((suffix for suffix in FORMATS if name.endswith(suffix)), None)


def stem_of(path: Path) -> str:
    """Return a file's name without its endings: ``train`` for ``train.jsonl.gz``."""
    name = path.name[: -len(".gz")] if path.name.lower().endswith(".gz") else path.name
    return name[: -len(format_of(path) or "")] or name


def read_table(path: Path, options: TableOptions | None = None) -> Table:
    """Read a file in one of `FORMATS`, plain or gzipped; `Table.source` gets its sha256."""
    options = options or TableOptions()
    suffix = format_of(path)
    if suffix is None:
        wanted = ", ".join(FORMATS)
        raise DataError(f"{path}: the name must end with one of {wanted} (or one of them and .gz).")
    empty = DataError(f"{path} is empty: expected at least a header and one row.")
    source = TextFile(path).source()
    if suffix == ".parquet":
        packed = path.name.lower().endswith(".gz")
        content: bytes | str = read_bytes(path) if packed else str(path)
        if not path.stat().st_size or not content.strip():
            raise empty
        return _parquet(content, path=path, source=source)
    file = TextFile.of(path, options.encoding)
    if suffix == ".json":
        text = file.decode(read_bytes(path))
        if not text.strip():
            raise empty
        return _json(text, file, source=source, options=options)
    if file.blank():
        raise empty
    if suffix in (".jsonl", ".ndjson"):
        return _json_lines(file, source=source, options=options)
    usual = "\t" if suffix == ".tsv" else ","
    return read_delimited(file, source=source, usual=usual, options=options)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    row = dict(pairs)
    if len(row) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"duplicate columns: {twice!r}")
    return row


# Made once: json.loads would make a decoder for each line.
_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def _parse_json(text: str, *, where: str, remedy: str = "Fix or remove it.") -> object:
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}: not valid JSON ({error.msg}, column {error.colno}). {remedy}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: JSON cannot be read ({error}). Fix or remove it.") from None


def _json_lines(content: TextFile, *, source: Mapping[str, str], options: TableOptions) -> Table:
    path = content.path
    names: dict[str, None] = {}
    lines, bad = array("q"), dict[int, str]()
    kept = None
    for line, text in _full_lines(content):
        row: dict[str, object] | None = None
        try:
            row = _parse_row(text, where=f"{path}, line {line}")
            names |= dict.fromkeys(row)
        except DataError:
            if not options.skip_bad_rows:
                raise
            bad[len(lines)] = "no JSON object"
        kept = kept or KeptColumns(names, options)
        kept.add(row)
        lines.append(line)
    if len(bad) == len(lines):
        raise DataError(f"{path} has no rows that can be read.")

    def read_again(name: str) -> Iterator[object]:
        for row, (_, text) in enumerate(_full_lines(content)):
            yield None if row in bad else json.loads(text).get(name)

    assert kept is not None
    column, notices = kept.reader(read_again), _encoding(content)
    table = Table(
        str(path), tuple(names), column, len(lines), lines, source=source, notices=notices
    )
    return table.without(bad)


def _parse_row(line: str, *, where: str) -> dict[str, object]:
    row = _parse_json(line, where=where)
    if not isinstance(row, dict):
        raise DataError(
            f'{where}: expected an object such as {{"text": "...", "label": 0}}, got '
            f"{type(row).__name__}. Fix the line, or leave such lines out with "
            "--set data.skip_bad_rows=true."
        )
    return row


def _full_lines(content: TextFile) -> Iterator[tuple[int, str]]:
    # Only "\n" ends a line: str.splitlines would also split at U+2028, which texts may contain.
    for number, line in enumerate(content.lines(newline="\n"), start=1):
        if line.strip():
            yield number, line.removesuffix("\n")


def _encoding(content: TextFile) -> tuple[str, ...]:
    return () if content.is_usual else (f"{content.path}: read with encoding {content.encoding}.",)


def _json(text: str, file: TextFile, *, source: Mapping[str, str], options: TableOptions) -> Table:
    path = file.path
    lines = "Fix it, or name the file .jsonl if it has one object a line."
    content = _parse_json(text, where=str(path), remedy=lines)
    if isinstance(content, dict) and content and all(isinstance(v, list) for v in content.values()):
        columns: dict[str, list[object]] = content
        sizes = {name: len(values) for name, values in columns.items()}
        if len(set(sizes.values())) != 1:
            raise DataError(f"{path}: columns must have equal lengths, got {sizes}.")
        size, bad = next(iter(sizes.values())), dict[int, str]()
    elif isinstance(content, list):
        bad = {
            row: f"a {type(value).__name__}"
            for row, value in enumerate(content)
            if not isinstance(value, dict)
        }
        if bad and not options.skip_bad_rows:
            row = next(iter(bad))
            raise DataError(
                f"{path}, row {row + 1}: expected an object, got {bad[row].removeprefix('a ')}. "
                "Fix the row, or leave such rows out with --set data.skip_bad_rows=true."
            )
        objects = [row if isinstance(row, dict) else {} for row in content]
        names = dict.fromkeys(name for row in objects for name in row)
        size, columns = len(content), {name: [row.get(name) for row in objects] for name in names}
    else:
        raise DataError(
            f"{path}: expected a list of objects, or one object whose values are lists (columns). "
            "Name the file .jsonl if it has one object a line."
        )
    if size == len(bad):
        raise DataError(f"{path} has no rows{' that can be read' if bad else ''}.")
    notices = _encoding(file)
    table = Table(
        str(path), tuple(columns), columns.__getitem__, size, source=source, notices=notices
    )
    return table.without(bad)


def _parquet(content: bytes | str, *, path: Path, source: dict[str, str]) -> Table:
    # Imported late: it is slow, and most runs read text files.
    import pyarrow
    from pyarrow import parquet

    @contextmanager
    def whole() -> Iterator[None]:
        try:
            yield
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            reason = str(error).splitlines()[0]
            raise DataError(
                f"{path} is not a whole Parquet file ({reason}). Write it again."
            ) from None

    with whole():
        read = pyarrow.BufferReader(content) if isinstance(content, bytes) else content
        # A page at a time: the packed column of a row group is often as large as the file.
        file = parquet.ParquetFile(read, buffer_size=_READ, pre_buffer=False)
        schema, rows = file.schema_arrow, file.metadata.num_rows
    check_names(schema.names, title=str(path))
    if not rows:
        raise DataError(f"{path} has no rows.")

    def column(name: str) -> Iterator[object]:
        with whole():
            for batch in file.iter_batches(_BATCH, columns=[name], use_threads=False):
                yield from batch.column(name).to_pylist()
        # Arrow keeps freed memory in its pool.
        pyarrow.default_memory_pool().release_unused()

    classes = _class_names(schema.metadata or {})
    names = tuple(schema.names)
    return Table(str(path), names, column, rows, label_names=classes, source=source)


def _class_names(metadata: dict[bytes, bytes]) -> dict[str, tuple[str, ...]]:
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
        return {
            name: tuple(map(str, inner["names"]))
            for name, feature in features.items()
            for inner in (feature, feature.get("feature") if isinstance(feature, dict) else None)
            if isinstance(inner, dict) and inner.get("_type") == "ClassLabel"
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        # The entry is from another program; if it is broken, it is ignored.
        return {}
