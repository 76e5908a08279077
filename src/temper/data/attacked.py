"""Texts that attacks found for training rows, kept as one file beside a run.

They are found before training and once, so that every epoch, a resumed run and a reader see the
same. ``attacked.parquet`` is as docs/formats.md says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from temper.data.examples import Examples
from temper.errors import CheckpointError
from temper.files import replaced

SCHEMA = pa.schema(
    [
        ("recipe", pa.string()),
        ("row", pa.string()),
        ("original", pa.string()),
        ("original_pair", pa.string()),
        ("text", pa.string()),
        ("text_pair", pa.string()),
        ("changed", pa.float64()),
        ("queries", pa.int64()),
    ]
)
"""Columns of the file."""

_TOLD = b"temper"


@dataclass(frozen=True)
class AttackedText:
    """A text that an attack made the attacked model answer wrongly.

    Args:
        recipe: Who found it.
        row: Hash of the row's unchanged text.
        original, original_pair: The row's texts as they were.
        text, text_pair: Its texts as they are.
        changed: Share of the words that were changed, in (0, 1].
        queries: Texts that the model was asked about.
    """

    recipe: str
    row: str
    original: str
    original_pair: str | None
    text: str
    text_pair: str | None
    changed: float
    queries: int


@dataclass(frozen=True)
class AttackedTexts:
    """What attacks made of training rows.

    Args:
        texts: The texts that were found.
        counts: By recipe: rows that were ``attacked``, of which ``changed`` were answered wrongly
            in the end, for so many ``queries``.
        notices: What a reader should know of it.
    """

    texts: tuple[AttackedText, ...]
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    notices: tuple[str, ...] = ()

    def of(self, recipe: str) -> FoundTexts:
        """Return the texts of one recipe, as a change of rows."""
        return FoundTexts({each.row: each for each in self.texts if each.recipe == recipe})

    def write(self, path: Path) -> None:
        """Write the file under a temporary name, then rename it.

        Args:
            path: The file.
        """
        told = {"counts": self.counts, "notices": self.notices}
        columns = [[getattr(each, name) for each in self.texts] for name in SCHEMA.names]
        schema = SCHEMA.with_metadata({_TOLD: json.dumps(told).encode()})
        with replaced(path) as temporary:
            pq.write_table(pa.table(columns, schema=schema), temporary)

    @classmethod
    def read(cls, path: Path) -> AttackedTexts:
        """Read the file.

        Args:
            path: The file.

        Raises:
            CheckpointError: It is damaged.
        """
        try:
            table = pq.read_table(path)
            told: dict[str, Any] = json.loads(table.schema.metadata[_TOLD])
            texts = tuple(AttackedText(**line) for line in table.to_pylist())
            return cls(texts, told["counts"], tuple(told["notices"]))
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise CheckpointError(
                f"{path} cannot be read ({error}). Remove that run's folder, or give --restart."
            ) from error


class FoundTexts:
    """Puts texts that were found before in the place of rows; rows without one stay.

    Args:
        found: The texts, by the hash of the row's unchanged text.
    """

    def __init__(self, found: Mapping[str, AttackedText]) -> None:
        self._found = found

    def rewritten(self, examples: Examples, *, seed: int) -> Examples:
        """Return rows with the texts that were found for them.

        Args:
            examples: n rows.
            seed: Decides nothing here.
        """
        texts, pairs = list(examples.text), list(examples.text_pair or ())
        for at, row in enumerate(examples.rows):
            if row in self._found:
                texts[at] = self._found[row].text
                if pairs:
                    pairs[at] = self._found[row].text_pair or ""
        return replace(examples, text=texts, text_pair=pairs or None, rows=[])
