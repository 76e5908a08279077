"""Read CSV and TSV files: fields separated by commas, semicolons, tabs or bars.

The file's name suggests a delimiter. Another one is used if only it splits the first line and gives
all rows the same number of fields. Quotes enclose fields (RFC 4180); in tab-separated files only if
the file shows it (`_quotes_of`).
"""

from __future__ import annotations

import csv
import re
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from temper.data.columns import KeptColumns
from temper.data.content import TextFile
from temper.data.table import Table, TableOptions
from temper.errors import DataError

DELIMITERS = {",": "','", ";": "';'", "\t": "tabs", "|": "'|'"}
"""Delimiter -> its name in messages."""

# Maximum number of lines, and of characters, that are read to find the delimiter.
_SAMPLE_LINES = 2000
_SAMPLE_LETTERS = 1 << 20
# Number of characters that are parsed at a time.
_LETTERS = 1 << 16

_QUOTE_HEADER = "If quotes enclose the fields of this file, quote the names in its first line too."

# One field of RFC 4180 with tabs: quoted as a whole, or free of quotes.
_QUOTED_FIELD = re.compile(r'(?:"(?:[^"]|"")*"|[^"\t\r\n]*)(?:\t|\r\n|\r|\n|\Z)')


def read_delimited(
    content: TextFile,
    *,
    source: Mapping[str, str],
    usual: str,
    options: TableOptions,
) -> Table:
    """Read a table from a file that is not blank; ``usual`` is the delimiter its name suggests."""
    result = _Delimited.of(content, usual=usual)
    (first, names), path = result.names(), str(content.path)
    lines, blank, bad = array("q"), array("q"), dict[int, str]()
    # Blank lines at the end are harmless; one in the middle may be a lost row.
    last_blank = array("q")
    needed = options.needed(names)
    joined, kept = _JoinedLines(result.delimiter, len(names)), KeptColumns(names, options)
    for line, record in result.rows(len(names), needed=needed, header_line=first, joined=joined):
        if record is None:
            last_blank.append(line)
            continue
        blank.extend(last_blank)
        del last_blank[:]
        if isinstance(record, str):
            if not options.skip_bad_rows:
                hint = result.quotes.joined and not result.quotes.enclose
                raise _bad_row(path, line, record, names, hint=f" {_QUOTE_HEADER}" if hint else "")
            bad[len(lines)] = record
        kept.add(dict(zip(names, record, strict=True)) if isinstance(record, list) else None)
        lines.append(line)
    if len(bad) == len(lines):
        raise DataError(f"{path} has a header but no rows{' that can be read' if bad else ''}.")

    def read_again(name: str) -> Iterator[object]:
        index = names.index(name)
        for _, record in result.rows(len(names), needed=needed, header_line=first):
            if record is not None:
                yield record[index] if isinstance(record, list) else None

    notices = result.notices(usual) + joined.notices(path)
    if blank:
        what = "1 blank line is" if len(blank) == 1 else f"{len(blank):,} blank lines are"
        which = "" if len(blank) == 1 else "the first is "
        notices.append(f"{path}: {what} skipped ({which}line {blank[0]}).")
    table = Table(
        path,
        names,
        kept.reader(read_again),
        len(lines),
        lines,
        source=source,
        decimal_comma=result.delimiter == ";",
        notices=tuple(notices),
    )
    return table.without(bad)


def _bad_row(
    path: str, line: int, fault: str, names: Sequence[str], *, hint: str = ""
) -> DataError:
    skip = "or leave such rows out with --set data.skip_bad_rows=true"
    if fault.startswith("quotes"):
        return DataError(
            f"{path}, line {line}: the quotes do not close ({fault.partition(': ')[2]}). Close "
            f"each quoted field with a quote, and double the quotes inside it, {skip}."
        )
    return DataError(
        f"{path}, line {line}: expected {len(names)} fields ({', '.join(names)}), got {fault}. "
        f"Quote a text that contains the delimiter or a line break, {skip}.{hint}"
    )


@dataclass(frozen=True)
class _Delimited:
    """A file with its delimiter and the role of its quotes."""

    content: TextFile
    delimiter: str
    quotes: _Quotes

    @classmethod
    def of(cls, content: TextFile, *, usual: str) -> _Delimited:
        delimiter = find_delimiter(content, usual=usual)
        # Most files have no quotes, and searching for them takes an eighth of the time.
        if delimiter == "\t" and any('"' in line for line in content.lines()):
            return cls(content, delimiter, _quotes_of(content.lines()))
        return cls(content, delimiter, _Quotes(enclose=True))

    def notices(self, usual: str) -> list[str]:
        """Return notices on a delimiter, encoding or quotes other than the name suggests."""
        unusual = []
        if self.delimiter != usual:
            unusual.append(f"{DELIMITERS[self.delimiter]} between columns")
        if not self.content.is_usual:
            unusual.append(f"encoding {self.content.encoding}")
        notices = [f"{self.content.path}: read with {', '.join(unusual)}."] if unusual else []
        if self.quotes.joined and not self.quotes.enclose:
            lines = "1 line" if self.quotes.joined == 1 else f"{self.quotes.joined:,} lines"
            notices.append(
                f"{self.content.path}: quotes would join {lines} to the line before (the first "
                f"quote is on line {self.quotes.first}). They are read as characters of the text, "
                f"and each line is a row. {_QUOTE_HEADER}"
            )
        return notices

    def names(self) -> tuple[int, tuple[str, ...]]:
        path = self.content.path
        full = (record for record in self._records() if not _is_blank(record[1]))
        line, record = next(full, (1, []))
        if isinstance(record, str):
            raise _bad_row(str(path), line, record, ())
        names = tuple(name.strip() for name in record)
        if not any(names):
            raise DataError(f"{path}, line {line}: the first line must name the columns, got none.")
        check_names(names, title=str(path))
        return line, names

    def rows(
        self, size: int, *, needed: int, header_line: int, joined: _JoinedLines | None = None
    ) -> Iterator[tuple[int, list[str] | str | None]]:
        """Yield the line number of each row with its fields; a fault for a bad row, None if blank.

        A row has ``size`` fields, of which the first ``needed`` are required; the others default to
        an empty text. ``header_line`` is the number of the header.
        """
        for line, record in self._records(joined):
            # The most frequent case comes first, because a file may have millions of rows.
            if len(record) == size > 1 and line > header_line and isinstance(record, list):
                yield line, record
            elif line <= header_line:
                if line < header_line:
                    yield line, None
            elif _is_blank(record, alone=size == 1):
                yield line, None
            elif isinstance(record, str):
                yield line, record
            elif needed <= len(record) <= size:
                yield line, record + [""] * (size - len(record))
            else:
                yield line, f"{len(record)} field{'' if len(record) == 1 else 's'}"

    def _records(self, joined: _JoinedLines | None = None) -> Iterator[tuple[int, list[str] | str]]:
        if not self.quotes.enclose:
            return plain_records(self.content.lines())
        return _quoted(self.content.lines(), delimiter=self.delimiter, joined=joined)


def _is_blank(record: list[str] | str, *, alone: bool = False) -> bool:
    """Return whether a row is blank; in a table of one column (``alone``), spaces are a text."""
    if isinstance(record, str):
        return False
    return not record or (len(record) == 1 and not alone and not record[0].strip())


def find_delimiter(content: TextFile, *, usual: str) -> str:
    """Guess the delimiter from the first lines of a file.

    It is the first, starting with ``usual``, that gives all rows the same number of fields, two or
    more. If none does, it is ``usual`` if that splits the header, else the one with which most rows
    have as many fields as the header.
    """
    sample = _sample(content)
    fields = {sign: _counts(sample, sign) for sign in dict.fromkeys((usual, *DELIMITERS))}
    named = [sign for sign, counts in fields.items() if counts and counts[0] > 1]
    even = [sign for sign in named if len(set(fields[sign])) == 1]
    if even or usual in named:
        return even[0] if even else usual
    # A file with some bad rows: most rows have as many fields as there are names.
    fractions = {sign: fields[sign].count(fields[sign][0]) / len(fields[sign]) for sign in named}
    return max(named, key=lambda sign: fractions[sign]) if named else usual


def _sample(content: TextFile) -> list[str]:
    lines, letters = [], 0
    for line in islice(content.lines(), _SAMPLE_LINES):
        lines.append(line)
        letters += len(line)
        if letters > _SAMPLE_LETTERS:
            break
    return lines


def _counts(sample: list[str], delimiter: str) -> list[int]:
    """Count the fields of each record; 0 for a record that cannot be parsed."""
    records: list[tuple[int, list[str] | str]]
    if delimiter == "\t" and not _quotes_of(sample).enclose:
        records = list(plain_records(sample))
    else:
        records = list(_quoted(iter(sample), delimiter=delimiter))
    if len(sample) == _SAMPLE_LINES or sum(map(len, sample)) > _SAMPLE_LETTERS:
        # The last record may continue after the sample.
        records = records[:-1] or records
    return [
        0 if isinstance(record, str) else len(record)
        for _, record in records
        if not _is_blank(record)
    ]


def check_names(names: Sequence[str], *, title: str) -> None:
    """Raise a `DataError` if two columns have the same name."""
    # Empty ones (a nameless index) cannot be chosen anyway.
    twice = [name for name, count in Counter(names).items() if name and count > 1]
    if twice:
        raise DataError(
            f"{title} has duplicate columns: {', '.join(map(repr, twice))}. Rename or remove one."
        )


@dataclass
class _JoinedLines:
    """Finds rows that a stray quote joined: quoted fields with line breaks that look like rows.

    Args:
        size: Number of fields of a row.
        rows: Number of rows that span several lines.
        suspects: Number of these in which each line has as many fields as a row.
        lost: Number of rows that are missing if each line of a suspect is a row.
        first: Number of the first suspect's first line.
    """

    delimiter: str
    size: int
    rows: int = 0
    suspects: int = 0
    lost: int = 0
    first: int = 0

    def add(self, start: int, lines: Sequence[str]) -> None:
        self.rows += 1
        full = [line for line in lines if line.strip()]
        if self.size > 1 and all(line.count(self.delimiter) + 1 == self.size for line in full):
            self.suspects += 1
            self.lost += len(full) - 1
            self.first = self.first or start

    def notices(self, path: str) -> list[str]:
        """Warn of lost rows if at least half of the rows that span several lines are suspects."""
        # Texts with line breaks and delimiters may look like rows by chance.
        if not self.suspects or 2 * self.suspects < self.rows:
            return []
        lost = "1 row is" if self.lost == 1 else f"{self.lost:,} rows are"
        return [
            f"{path}: {lost} probably lost to quotes. From line {self.first} on, "
            f"{self.suspects + self.lost:,} lines that look like rows are read as {self.suspects:,}"
            ", because quotes enclose their line breaks. Double the quotes that are part of a "
            "text, and enclose the text in quotes."
        ]


def _quoted(
    lines: Iterator[str], *, delimiter: str, joined: _JoinedLines | None = None
) -> Iterator[tuple[int, list[str] | str]]:
    """Yield the first line number of each record, with its fields or the fault of its quotes."""
    taken: list[str] = []
    again: list[str] = []

    def fed() -> Iterator[str]:
        while (line := again.pop() if again else next(lines, None)) is not None:
            taken.append(line)
            yield line

    start, reader = 1, csv.reader(fed(), delimiter=delimiter, strict=True)
    is_done = False
    while not is_done:
        result: list[tuple[int, list[str] | str]] = []
        letters = 0
        # The csv module limits the size of a field for the whole process. Long documents are
        # valid, so the limit is raised while records are read.
        before = csv.field_size_limit(sys.maxsize)
        try:
            for record in reader:
                result.append((start, record))
                if joined is not None and len(taken) > 1:
                    joined.add(start, taken)
                start += len(taken)
                letters += sum(map(len, taken))
                taken.clear()
                if letters > _LETTERS:
                    break
            else:
                is_done = True
        except csv.Error as error:
            # An open quote would join all further lines, so parsing restarts on the next line.
            result.append((start, f"quotes that do not close: {error}"))
            again += reversed(taken[1:])
            start += 1
            taken.clear()
            reader = csv.reader(fed(), delimiter=delimiter, strict=True)
        finally:
            csv.field_size_limit(before)
        yield from result


def plain_records(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield line number (from 1) and fields of tab-separated lines; quotes are part of the text."""
    for number, line in enumerate(lines, start=1):
        content = line.rstrip("\r\n")
        yield number, content.split("\t") if content else []


@dataclass(frozen=True)
class _Quotes:
    """The role of quotes in a file.

    Args:
        enclose: Whether quotes enclose fields; otherwise they are part of the text.
        joined: Number of lines that enclosing quotes would join to the line before.
        first: Number of the first line that they would join to the next; 0 if there is none.
    """

    enclose: bool
    joined: int = 0
    first: int = 0


def _quotes_of(lines: Iterable[str]) -> _Quotes:
    """Decide whether quotes enclose the fields of tab-separated lines.

    Most such files have no quoting: a quote that starts one text and one that ends a later text
    would join the rows between them. So quotes enclose fields only if all lines can be parsed that
    way (RFC 4180) and the file gives evidence: a quoted name in the header, or more lines with as
    many fields as the header. On a tie, quotes enclose fields if they join no lines.
    """
    size = number = joined = first = 0
    with_quotes = without = 0  # Lines that do not fit the header in either reading.
    shown = False
    for record in _between_quotes(lines):
        text = "".join(record)
        fields = text.count("\t") + 1 if '"' not in text else _quoted_fields(text)
        if not fields:
            return _Quotes(enclose=False)
        counts = [line.count("\t") + 1 for line in record if "\t" in line or line.strip()]
        if counts and not size:
            size, shown = fields, '"' in text
        whole = counts.count(size)
        # If a quoted field joins lines, only the first or the last can have all fields of a row.
        with_quotes += bool(counts) * (fields != size) + (max(0, whole - 1) if record[1:] else 0)
        without += len(counts) - whole
        if len(record) > 1:
            joined, first = joined + len(record) - 1, first or number + 1
        number += len(record)
    better = with_quotes < without or (with_quotes == without and not joined)
    return _Quotes(shown or better, joined, first)


def _between_quotes(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield lists of lines; lines within an open quote are in one list."""
    record: list[str] = []
    is_open = False
    for line in lines:
        record.append(line)
        is_open ^= line.count('"') % 2 == 1
        if not is_open:
            yield record
            record = []
    if record:
        yield record


def _quoted_fields(text: str) -> int:
    """Count the fields of a record if each is fully quoted or has no quote; else return 0."""
    count = position = 0
    while position < len(text):
        field = _QUOTED_FIELD.match(text, position)
        if field is None or field.end() == position:
            return 0
        count, position = count + 1, field.end()
        if not field.group().endswith("\t"):
            break
    else:
        # The last field is empty.
        count += 1
    return count if position == len(text) else 0
