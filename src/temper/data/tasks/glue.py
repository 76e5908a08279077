"""Read GLUE's own files: tab-separated, quotes are plain characters, every task another header.

The folders are those that GLUE's download script makes: CoLA, SST-2, MRPC, QQP, STS-B, MNLI, QNLI,
RTE and WNLI.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from temper.data.content import first_line, read_text
from temper.data.delimited import plain_records
from temper.data.table import Table, TableOptions, skipped_rows
from temper.errors import DataError

Readers = dict[str, Callable[[], Table]]

_SPLITS = (
    "train",
    "dev",
    "dev_matched",
    "dev_mismatched",
    "test",
    "test_matched",
    "test_mismatched",
)


@dataclass(frozen=True)
class _Header:
    """What a task's columns are called in its files."""

    text: str
    text_pair: str | None
    label: str


_SENTENCES = ("sentence1", "sentence2")
_HEADERS = {
    "cola": _Header("sentence", None, "label"),
    "sst2": _Header("sentence", None, "label"),
    "mrpc": _Header("#1 String", "#2 String", "Quality"),
    "qqp": _Header("question1", "question2", "is_duplicate"),
    "stsb": _Header(*_SENTENCES, "score"),
    "mnli": _Header(*_SENTENCES, "gold_label"),
    "qnli": _Header("question", "sentence", "label"),
    "rte": _Header(*_SENTENCES, "label"),
    "wnli": _Header(*_SENTENCES, "label"),
}
# CoLA's train and dev files have no header: source, label, the author's mark, sentence.
_COLA = ("source", "label", "mark", "sentence")
_COLA_LABELS = {"0", "1"}
# QQP's files hold questions with a line break, which tears their rows. All readers of GLUE drop
# them, and the published sizes do not count them.
_TORN = {"qqp"}
_MSR = {"train": "msr_paraphrase_train.txt", "test": "msr_paraphrase_test.txt"}
_MSR_DEV_IDS = "dev_ids.tsv"


def glue_splits(folder: Path, task: str, options: TableOptions | None = None) -> Readers | None:
    """Find the splits of a folder that holds a GLUE task as GLUE's download script lays it out.

    Args:
        folder: The folder.
        task: The task's name.
        options: How tables are read.

    Returns:
        What reads each split's table, with the columns ``text``, ``text_pair`` and ``label``; None
        where the folder's files are not GLUE's.

    Raises:
        DataError: If a file cannot be read.
    """
    options = options or TableOptions()
    if task not in _HEADERS:
        return None
    files = {split: folder / f"{split}.tsv" for split in _SPLITS}
    files = {split: path for split, path in files.items() if path.is_file()}
    if "train" not in files and task == "mrpc":
        return _msr_splits(folder, options)
    evaluated = [path for split, path in files.items() if not split.startswith("test")]
    if not evaluated or not all(_is_glue(path, task) for path in evaluated):
        return None
    return {split: _reader(path, task, options) for split, path in files.items()}


def _is_glue(path: Path, task: str) -> bool:
    """Say whether a file with labels has the columns of GLUE's."""
    first = first_line(path).split("\t")
    if _without_header(first, task):
        return True
    header = _HEADERS[task]
    return {header.text, header.text_pair or header.text, header.label} <= set(first)


def _without_header(first: Sequence[str], task: str) -> bool:
    return task == "cola" and len(first) == len(_COLA) and first[1] in _COLA_LABELS


def _reader(path: Path, task: str, options: TableOptions) -> Callable[[], Table]:
    return lambda: _read(path, task, options)


def _read(path: Path, task: str, options: TableOptions) -> Table:
    text, source = read_text(path, options.encoding)
    records = plain_records(text)
    line, first = next(records)
    rows = [(line, first)] if _without_header(first, task) else []
    names = _COLA if rows else [name.strip() for name in first]
    header = _HEADERS[task]
    wanted = {"text": header.text, "label": header.label}
    if header.text_pair is not None:
        wanted["text_pair"] = header.text_pair
    lacking = [name for use, name in wanted.items() if name not in names and use != "label"]
    if lacking:
        raise DataError(
            f"{path}: expected {', '.join(map(repr, lacking))} in GLUE's header for {task}, got "
            f"{', '.join(map(repr, names))}. Copy the file again."
        )
    places = {use: names.index(name) for use, name in wanted.items() if name in names}
    rows += [(line, record) for line, record in records if record]
    return _table(path, rows, places, source=source, torn=task in _TORN, options=options)


def _table(
    path: Path,
    rows: Sequence[tuple[int, list[str]]],
    places: Mapping[str, int],
    *,
    source: Mapping[str, str],
    torn: bool,
    options: TableOptions,
) -> Table:
    """Make a table of lines that are long enough; shorter ones are dropped or refused."""
    last = max(places.values())
    short = [(line, record) for line, record in rows if len(record) <= last]
    notices: tuple[str, ...] = ()
    if short:
        line, record = short[0]
        if not torn and not options.skip_bad_rows:
            raise DataError(
                f"{path}, line {line}: expected at least {last + 1} fields with tabs between them, "
                f"got {len(record)}. Copy the file again, or leave such rows out with "
                "--skip-bad-rows (`skip_bad_rows`)."
            )
        said = skipped_rows(str(path), {line: f"{len(record)} fields" for line, record in short})
        if torn:
            said = (
                f"{len(short)} lines of {path} (the first is line {line}) have too few fields: a "
                "line break inside a question tears its row. They are left out, as in the "
                "published sizes."
            )
        notices = (said,)
    whole = [(line, record) for line, record in rows if len(record) > last]
    if not whole:
        raise DataError(f"{path} has no rows.")
    columns = {use: [record[place] for _, record in whole] for use, place in places.items()}
    lines = [line for line, _ in whole]
    return Table(
        str(path),
        tuple(columns),
        columns.__getitem__,
        len(whole),
        lines,
        source=source,
        notices=notices,
    )


def _msr_splits(folder: Path, options: TableOptions) -> Readers | None:
    """Find MRPC's original files; GLUE's dev rows are those that a list of ids names."""
    files = {split: folder / name for split, name in _MSR.items()}
    if not files["train"].is_file():
        return None
    ids = folder / _MSR_DEV_IDS
    readers: Readers = {}
    if ids.is_file():
        readers["train"] = lambda: _msr_part(files["train"], ids, options, dev=False)
        readers["dev"] = lambda: _msr_part(files["train"], ids, options, dev=True)
    else:
        readers["train"] = _reader(files["train"], "mrpc", options)
    if files["test"].is_file():
        readers["test"] = _reader(files["test"], "mrpc", options)
    return readers


def _msr_part(path: Path, ids: Path, options: TableOptions, *, dev: bool) -> Table:
    """Read the rows of the original train file that are in GLUE's dev split, or the others."""
    text, source = read_text(path, options.encoding)
    named = {tuple(record) for _, record in plain_records(read_text(ids)[0]) if record}
    records = [(line, record) for line, record in plain_records(text) if record]
    _, names = records[0]
    header = _HEADERS["mrpc"]
    wanted = {"text": header.text, "text_pair": str(header.text_pair), "label": header.label}
    keys = ("#1 ID", "#2 ID")
    lacking = [name for name in (*wanted.values(), *keys) if name not in names]
    if lacking:
        raise DataError(f"{path}: expected the columns {', '.join(lacking)}, got {names}.")
    places = {use: names.index(name) for use, name in wanted.items()}
    first, second = map(names.index, keys)
    rows = [
        (line, record)
        for line, record in records[1:]
        if ((record[first], record[second]) in named) is dev
    ]
    return _table(path, rows, places, source=source, torn=False, options=options)
