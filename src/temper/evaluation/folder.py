"""The result of an evaluation, and its files (docs/formats.md)."""

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
    return pa.schema(
        [
            pa.field("perspective", pa.string()),
            pa.field("set", pa.string(), nullable=False),
            pa.field("condition", pa.string(), nullable=False),
            pa.field("row", pa.string(), nullable=False),
            pa.field("index", pa.int64(), nullable=False),
            pa.field("number", pa.int64(), nullable=False),
            pa.field("text", pa.string(), nullable=False),
            pa.field("text_pair", pa.string()),
        ]
    )


class Texts:
    """Collects the texts of ``texts.parquet``, each once; rows of scores contain only hashes.

    They are errors, and attacked texts before (condition ``clean``) and after a text attack.
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
        """Add n texts of the set ``name``, at positions ``index`` [n] of this set.

        ``perspective`` is the one that changed the texts; None for unchanged texts. The hashes of
        ``examples`` are those of the original texts.
        """
        pairs: Sequence[str | None] = examples.text_pair or [None] * len(examples)
        for row, position, number, text, pair in zip(
            examples.rows, index.tolist(), examples.numbers, examples.text, pairs, strict=True
        ):
            values = (perspective, name, condition, row, position, number, text, pair)
            key = (perspective, name, condition, position)
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
        """Add the changed texts of rows ``index`` of the set ``name``, and their originals."""
        self.keep(name, original, index)
        # The hash is that of the original text, so that one key finds both texts.
        known = replace(changed, rows=original.rows)
        self.keep(name, known, index, perspective=perspective, condition=condition)

    def table(self) -> pa.Table:
        return pa.Table.from_pylist(list(self._rows.values()), schema=schema())


ROWS = "rows.parquet"
TEXTS = "texts.parquet"
IN_SCORES = ("model", "task", "truncated", "seen", "notices", "skipped", "missing", "scores")
"""Fields of an evaluation that are in ``scores.json``."""
GROUP = 1 << 14
"""Number of rows that are written at a time, to bound the memory."""


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Args:
        rows: One row per example, set, perspective and condition.
        scores: Entries of ``scores.json``, each with value, n and interval.
        model: Name or folder of the model.
        task: ``kind``, ``metric`` and ``labels`` of the task.
        truncated: Set -> fraction of rows that were truncated.
        seen: Sentences on how many rows of each set the model was trained on; reported first.
        notices: Notices for the user.
        skipped: Perspective that could not be measured -> reason.
        missing: Requested set that does not exist -> reason.
        texts: The texts of ``texts.parquet`` (`Texts`).
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
    """Write an evaluation into a folder, atomically; earlier content is replaced.

    Raises:
        CheckpointError: Another process is writing to the folder, or it cannot be written.
    """
    path = Path(folder)
    with files.staged_folder(path) as staged:
        write_files(evaluation, staged)
    return path


def write_files(evaluation: Evaluation, folder: Path) -> None:
    content = {"schema": files.SCHEMA} | {name: getattr(evaluation, name) for name in IN_SCORES}
    with system_memory():
        for table, name in ((evaluation.rows, ROWS), (evaluation.texts, TEXTS)):
            pq.write_table(table, folder / name, compression="zstd", row_group_size=GROUP)
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    (folder / "scores.json").write_text(text + "\n", encoding="utf-8", newline="\n")


def read(folder: Path | str) -> Evaluation:
    """Read an evaluation.

    Raises:
        CheckpointError: A file is missing, damaged or of a newer format.
        MemoryLimitError: The rows do not fit into memory.
    """
    path = Path(folder)
    try:
        content = json.loads((path / "scores.json").read_text(encoding="utf-8"))
        for name in (ROWS, TEXTS):
            files.check_table(path / name)
        rows, texts = pq.read_table(path / ROWS), pq.read_table(path / TEXTS)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise CheckpointError(
            f"Cannot read the evaluation in {path}: {error}. Evaluate the model again."
        ) from error
    files.check_schema(path / "scores.json", content)
    lacking = {"schema", *IN_SCORES} - set(content if isinstance(content, dict) else ())
    if lacking:
        raise CheckpointError(f"{path / 'scores.json'} lacks {sorted(lacking)}. Evaluate again.")
    to_blocks(rows)
    known = {name: content[name] for name in IN_SCORES}
    known |= {name: tuple(known[name]) for name in ("seen", "notices")}
    return Evaluation(rows=rows, texts=texts, **known)
