"""The texts behind an evaluation's rows: ``texts.parquet``, one line a text that was answered.

Rows hold hashes; this table says what stands behind those that a person may want to read: the
attacked rows as they were (condition ``clean``) and as an attack on text left them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
        self._parts: list[pa.Table] = []
        self._seen: set[tuple[str, int]] = set()

    def keep(self, name: str, examples: Examples, index: IntegerArray) -> None:
        """Keep texts as they are.

        Args:
            name: The set's name.
            examples: n of its rows.
            index: Position of each in the whole set, [n].
        """
        places = [place for place, at in enumerate(index.tolist()) if (name, at) not in self._seen]
        self._seen.update((name, int(index[place])) for place in places)
        chosen = examples.select(places)
        self._add(None, name, CLEAN, chosen.rows, index[places], chosen.text, chosen.text_pair)

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
        self._add(
            perspective, name, condition, original.rows, index, changed.text, changed.text_pair
        )

    def table(self) -> pa.Table:
        """Return all that was kept, in order."""
        return pa.concat_tables(self._parts) if self._parts else SCHEMA.empty_table()

    def _add(
        self,
        perspective: str | None,
        name: str,
        condition: str,
        rows: Sequence[str],
        index: Iterable[int],
        text: Sequence[str],
        text_pair: Sequence[str] | None,
    ) -> None:
        n = len(rows)
        columns = [
            [perspective] * n,
            [name] * n,
            [condition] * n,
            rows,
            [int(at) for at in index],
            text,
            [None] * n if text_pair is None else text_pair,
        ]
        arrays = [pa.array(column, kind.type) for column, kind in zip(columns, SCHEMA, strict=True)]
        self._parts.append(pa.Table.from_arrays(arrays, schema=SCHEMA))
