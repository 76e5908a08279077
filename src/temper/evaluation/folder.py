"""The result of an evaluation: its texts, and its folder of plain files (docs/formats.md)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from temper import files
from temper.data.examples import Examples
from temper.errors import CheckpointError
from temper.evaluation.rows import system_memory, to_blocks
from temper.functional.resampling import IntegerArray
from temper.lazy import parquet as pq
from temper.lazy import pyarrow as pa

CLEAN = "clean"


@cache
def schema() -> pa.Schema:
    """Return the columns of the texts."""
    return pa.schema(
        [
            pa.field("perspective", pa.string()),
            pa.field("set", pa.string(), nullable=False),
            pa.field("condition", pa.string(), nullable=False),
            pa.field("row", pa.string(), nullable=False),
            pa.field("index", pa.int64(), nullable=False),
            pa.field("text", pa.string(), nullable=False),
            pa.field("text_pair", pa.string()),
        ]
    )


class Texts:
    """Collects the texts of an evaluation, each of them once.

    Rows hold hashes; ``texts.parquet`` says what stands behind those that a person may want to
    read: the attacked rows as they were (condition ``clean``) and as an attack on text left them.
    """

    def __init__(self) -> None:
        # Rows of the table, by perspective, set, condition and position.
        self._rows: dict[tuple[str | None, str, str, int], dict[str, Any]] = {}

    def keep(
        self,
        name: str,
        examples: Examples,
        index: IntegerArray,
        *,
        perspective: str | None = None,
        condition: str = CLEAN,
    ) -> None:
        """Keep texts.

        Args:
            name: The set's name.
            examples: n of its rows, which bear the hashes of what they were.
            index: Position of each in the whole set, [n].
            perspective: Who changed them, None for unchanged texts.
            condition: How, as in the rows.
        """
        pairs: Sequence[str | None] = examples.text_pair or [None] * len(examples)
        for row, at, text, pair in zip(
            examples.rows, index.tolist(), examples.text, pairs, strict=True
        ):
            values = (perspective, name, condition, row, at, text, pair)
            key = (perspective, name, condition, at)
            self._rows.setdefault(key, dict(zip(schema().names, values, strict=True)))

    def keep_changed(
        self,
        perspective: str,
        name: str,
        condition: str,
        original: Examples,
        index: IntegerArray,
        changed: Examples,
    ) -> None:
        """Keep what a perspective made of texts, and the texts as they were.

        Args:
            perspective: Who changed them.
            name: The set's name.
            condition: How, as in the rows.
            original: n rows of the set.
            index: Position of each in the whole set, [n].
            changed: The n changed texts.
        """
        self.keep(name, original, index)
        # The row is known by the hash of what it was, so that both texts are found by one key.
        known = replace(changed, rows=original.rows)
        self.keep(name, known, index, perspective=perspective, condition=condition)

    def table(self) -> pa.Table:
        """Return all that was kept, in order."""
        return pa.Table.from_pylist(list(self._rows.values()), schema=schema())


ROWS = "rows.parquet"
TEXTS = "texts.parquet"
IN_SCORES = ("model", "task", "truncated", "seen", "notices", "skipped", "missing", "scores")
"""Fields of an evaluation that ``scores.json`` holds."""
GROUP = 1 << 14
"""Rows that are written at a time; until then they are in memory a second time, packed."""


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Args:
        rows: One line per example, set, perspective and condition.
        scores: Score entries, each with value, n and interval.
        model: Name or folder of the model.
        task: ``kind``, ``metric`` and ``labels`` of the task.
        truncated: Fraction of rows cut to the model's length, by set.
        seen: How many rows of each set the model was trained on, as sentences; reported first.
        notices: Notes for the reader.
        skipped: Perspectives that could not be measured, and why.
        missing: Sets that were asked for and are not there, and why.
        texts: The texts behind the rows that a person may want to read (`Texts`).
    """

    rows: pa.Table = field(repr=False)
    scores: list[dict[str, Any]] = field(repr=False)
    model: str = ""
    task: dict[str, Any] = field(default_factory=dict)
    truncated: dict[str, float] = field(default_factory=dict)
    seen: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    skipped: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    texts: pa.Table = field(default_factory=lambda: schema().empty_table(), repr=False)


def write(evaluation: Evaluation, folder: Path | str) -> Path:
    """Write ``rows.parquet`` and ``scores.json`` into a new folder, whole or not at all.

    Args:
        evaluation: What to write.
        folder: Where; it must not exist, or be empty, or hold an earlier evaluation and nothing
            else.

    Returns:
        The folder.

    Raises:
        CheckpointError: The folder holds other files, another process writes it, or it cannot be
            written.
    """
    path = Path(folder)
    _check_target(path)
    with files.staged_folder(path) as staged:
        write_files(evaluation, staged)
    return path


def write_files(evaluation: Evaluation, folder: Path) -> None:
    """Write the files of an evaluation.

    Args:
        evaluation: What to write.
        folder: An empty folder.
    """
    content = {"schema": files.SCHEMA} | {name: getattr(evaluation, name) for name in IN_SCORES}
    with system_memory():
        for table, name in ((evaluation.rows, ROWS), (evaluation.texts, TEXTS)):
            pq.write_table(table, folder / name, compression="zstd", row_group_size=GROUP)
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    (folder / "scores.json").write_text(text + "\n", encoding="utf-8", newline="\n")


def read(folder: Path | str) -> Evaluation:
    """Read an evaluation.

    Args:
        folder: A folder that `write` made.

    Returns:
        The evaluation; writing it again gives the same files.

    Raises:
        CheckpointError: A file is missing, damaged or of a newer format.
        MemoryLimitError: Its rows have no room in memory.
    """
    path = Path(folder)
    try:
        content = json.loads((path / "scores.json").read_text(encoding="utf-8"))
        # Evaluations from before texts were kept have none.
        kept = (path / TEXTS).exists()
        for name in (ROWS, TEXTS) if kept else (ROWS,):
            files.check_table(path / name)
        rows = pq.read_table(path / ROWS)
        texts = pq.read_table(path / TEXTS) if kept else schema().empty_table()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise CheckpointError(
            f"Cannot read the evaluation in {path}: {error}. Evaluate the model again."
        ) from error
    files.check_schema(path / "scores.json", content)
    lacking = {"schema", "model", "task", "truncated", "notices", "scores"}
    lacking -= set(content) if isinstance(content, dict) else set()
    if lacking:
        raise CheckpointError(f"{path / 'scores.json'} lacks {sorted(lacking)}. Evaluate again.")
    to_blocks(rows)
    known = {name: content[name] for name in IN_SCORES if name in content}
    # Older evaluations lack `seen`.
    known |= {name: tuple(known.get(name, ())) for name in ("seen", "notices")}
    return Evaluation(rows=rows, texts=texts, **known)


def _check_target(path: Path) -> None:
    """Refuse to overwrite anything that is not an evaluation, its settings or its report."""
    if not path.exists():
        return
    if not path.is_dir():
        raise CheckpointError(f"Expected a folder to write to, but {path} is a file.")
    known = {ROWS, TEXTS, "scores.json", "settings.json"}
    known |= {"report.html", "report.md", "scores.csv", "figures"}
    others = sorted({entry.name for entry in path.iterdir()} - known)
    if others:
        raise CheckpointError(
            f"{path} holds other files ({', '.join(others[:3])}), which an evaluation must not "
            "replace. Give an empty or new folder."
        )
