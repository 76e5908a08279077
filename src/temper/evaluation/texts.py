"""The texts behind an evaluation's rows: ``texts.parquet``, one line a text that was answered.

Rows hold hashes; this table says what stands behind those that a person may want to read: the
attacked rows as they were (condition ``clean``) and as an attack on text left them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from temper.data.examples import Examples
from temper.functional.resampling import IntegerArray

CLEAN = "clean"

SCHEMA = pa.schema(
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
    """Collects the texts of an evaluation; each stands once, whoever asks for it."""

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
            perspective: Who changed them, None of texts as they are.
            condition: How, as in the rows.
        """
        pairs: Sequence[str | None] = examples.text_pair or [None] * len(examples)
        for row, at, text, pair in zip(
            examples.rows, index.tolist(), examples.text, pairs, strict=True
        ):
            values = (perspective, name, condition, row, at, text, pair)
            key = (perspective, name, condition, at)
            self._rows.setdefault(key, dict(zip(SCHEMA.names, values, strict=True)))

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
        return pa.Table.from_pylist(list(self._rows.values()), schema=SCHEMA)
