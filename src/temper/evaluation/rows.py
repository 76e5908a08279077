"""The rows that every perspective writes: one per example, set, perspective and condition.

A `Block` has the rows of one condition as arrays. A table is the concatenation of all blocks and
the content of ``rows.parquet`` (docs/formats.md). Scores are computed only from blocks. To save
memory, a table shares the arrays of its blocks, and blocks of the same set share its hashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from temper.data.examples import ScoredKind
from temper.data.stored import values_at
from temper.display.records import Parameters
from temper.errors import CheckpointError
from temper.evaluation.binned import gap_columns
from temper.functional.answers import SPAN_SCORES
from temper.functional.entities import COUNTS
from temper.functional.resampling import FloatArray, IntegerArray
from temper.lazy import pyarrow as pa

LABEL, PREDICTED = "label:", "predicted:"
"""Prefixes of the columns for each of several labels: does it apply, is it predicted (1 or 0)."""
ANSWER = "answer_probability"
"""Column with the probability of an answer in a context."""
_KEYS = ("perspective", "set", "condition", "parameters")


@cache
def schema() -> pa.Schema:
    """Return the columns of every table of rows; `Block.measured` adds further ones."""
    return pa.schema(
        [
            pa.field("perspective", pa.string(), nullable=False),
            pa.field("set", pa.string(), nullable=False),
            pa.field("condition", pa.string(), nullable=False),
            pa.field("parameters", pa.string(), nullable=False),
            pa.field("row", pa.string(), nullable=False),
            pa.field("index", pa.int64(), nullable=False),
            pa.field("label", pa.float64()),
            pa.field("prediction", pa.float64()),
            pa.field("probabilities", pa.list_(pa.float64()), nullable=False),
            pa.field("loss", pa.float64()),
            pa.field("value", pa.float64()),
            pa.field("group", pa.string()),
            pa.field("pair", pa.string()),
        ]
    )


@dataclass(frozen=True)
class Condition:
    """How the examples of a block were perturbed or measured.

    Args:
        perspective: Name of the perspective.
        set: Name of the data set.
        name: ``clean``, or a perturbation or measurement such as ``pgd`` or ``jacobian``.
        parameters: Parameters of the perturbation, such as ``radius``, ``sigma`` or ``layer``.
    """

    perspective: str
    set: str
    name: str = "clean"
    parameters: Parameters = field(default_factory=Parameters)


@dataclass(frozen=True)
class Block:
    """The n rows of one condition: predictions, or one measured value per row (`of_values`).

    Args:
        condition: The condition.
        row: Hash of each text, [n].
        index: Position of each row in its set, [n].
        label: Class index or target, [n]; NaN if unlabeled.
        prediction: Class index or predicted value, [n]; NaN if there is no prediction.
        probabilities: [n, C], or [n, L] for several labels; [n, 0] if there are none.
        loss: NLL (its mean over several labels) or squared error, [n]; NaN if unlabeled.
        value: Measured value of each row, [n]; None if the rows have predictions.
        group: Name of the group of each row, [n]; None if the set has no groups.
        pair: Name of the contrast pair of each row, [n]; None if the set has no pairs.
        measured: Further columns: name -> values [n], NaN if missing. For several labels they are
            ``label:NAME`` and ``predicted:NAME``, 1 or 0; for tags
            `temper.functional.entities.COUNTS`; for answers in contexts `ANSWER` and
            `temper.functional.answers.SPAN_SCORES`; for completions `TARGETS`.
    """

    condition: Condition
    row: Sequence[str]
    index: IntegerArray
    label: FloatArray
    prediction: FloatArray
    probabilities: FloatArray = field(repr=False)
    loss: FloatArray = field(repr=False)
    value: FloatArray | None = None
    group: Sequence[str | None] | None = None
    pair: Sequence[str | None] | None = None
    measured: Mapping[str, FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if taken := sorted(set(self.measured) & set(schema().names)):
            raise ValueError(
                f"`measured` has names of other columns: {', '.join(taken)}. Rename them."
            )

    @classmethod
    def of_values(
        cls, condition: Condition, row: Sequence[str], index: IntegerArray, value: FloatArray
    ) -> Block:
        """Create rows with one measured value each (NaN if missing) and no prediction."""
        nothing = np.full(len(row), np.nan)
        return cls(
            condition=condition,
            row=row,
            index=index,
            label=nothing,
            prediction=nothing,
            probabilities=np.empty((len(row), 0)),
            loss=nothing,
            value=value,
        )

    def __len__(self) -> int:
        return len(self.row)

    @property
    def kind(self) -> ScoredKind:
        """Kind of the labels; ``classification`` for questions with choices."""
        if any(name.startswith(LABEL) for name in self.measured):
            return "multi_label"
        if COUNTS[0] in self.measured:
            return "tokens"
        if ANSWER in self.measured:
            return "spans"
        if TARGETS[0] in self.measured:
            return "completions"
        return "classification" if self.probabilities.shape[1] else "regression"

    @property
    def classifies(self) -> bool:
        return self.kind == "classification"

    @property
    def applies(self) -> FloatArray:
        """Whether each of several labels applies, 1 or 0, [n, L]."""
        return self._by_label(LABEL)

    @property
    def predicted(self) -> FloatArray:
        """Whether each of several labels is predicted, 1 or 0, [n, L]."""
        return self._by_label(PREDICTED)

    def _by_label(self, prefix: str) -> FloatArray:
        columns = [values for name, values in self.measured.items() if name.startswith(prefix)]
        return np.stack(columns, axis=1)

    @property
    def has_confidence(self) -> bool:
        """Whether each row has one prediction that is right or wrong, and its probability."""
        return self.kind in ("classification", "spans")

    @property
    def confidence(self) -> FloatArray:
        """Probability of the predicted class or answer, [n]."""
        if ANSWER in self.measured:
            return self.measured[ANSWER]
        return self.probabilities[np.arange(len(self)), self.prediction.astype(np.int64)]

    @property
    def correct(self) -> FloatArray:
        """Whether the prediction is the label, or the answer an exact match, 1 or 0, [n]."""
        if ANSWER in self.measured:
            return self.measured[SPAN_SCORES[1]]
        return np.asarray(self.prediction == self.label, dtype=np.float64)


def rows_at(clean: Block, block: Block) -> Block:
    """Return the rows of ``clean`` at the positions of ``block``."""
    indices = np.searchsorted(clean.index, block.index)
    names = ("index", "label", "prediction", "probabilities", "loss")
    return replace(
        clean,
        row=values_at(clean.row, indices),
        **{name: getattr(clean, name)[indices] for name in names},
        measured={name: values[indices] for name, values in clean.measured.items()},
        group=None if clean.group is None else [clean.group[index] for index in indices],
        pair=None if clean.pair is None else [clean.pair[index] for index in indices],
    )


def to_table(blocks: Iterable[Block]) -> pa.Table:
    """Concatenate blocks to a table with the columns of `schema`."""
    blocks = list(blocks)
    hashes: dict[int, tuple[Sequence[str], pa.ChunkedArray]] = {}
    # Columns of labels stay in the order of their probabilities.
    measured = list(dict.fromkeys(name for block in blocks for name in block.measured))
    with system_memory():
        parts = [_block_table(block, hashes, measured) for block in blocks]
    # The chunks are not combined, because that would copy all rows.
    return pa.concat_tables(parts) if parts else schema().empty_table()


def to_blocks(table: pa.Table) -> list[Block]:
    """Split a table into its blocks, in the order of their first rows.

    Rows within a block are sorted by position.

    Raises:
        CheckpointError: A column is missing or has another type, or a block has a row twice.
    """
    _check(table)
    keys = table.select(list(_KEYS)).to_pandas(strings_to_categorical=True)
    groups = keys.groupby(list(_KEYS), sort=False, observed=True)
    return [
        _block(
            table.take(pa.array(members.index)),
            Condition(perspective, name, what, _parameters(text)),
        )
        for (perspective, name, what, text), members in groups
    ]


def _block_table(
    block: Block,
    hashes: dict[int, tuple[Sequence[str], pa.ChunkedArray]],
    measured: Sequence[str],
) -> pa.Table:
    """Convert one block to a table; ``hashes`` caches columns that blocks of a set share."""
    n, condition = len(block), block.condition
    if id(block.row) not in hashes:
        # Only one chunk at a time exists as Python strings.
        starts = range(0, n, STRETCH)
        parts = [
            pa.array(list(block.row[start : start + STRETCH]), pa.string()) for start in starts
        ]
        hashes[id(block.row)] = (block.row, pa.chunked_array(parts, pa.string()))
    # Most columns of a block are empty; empty columns of one type share one array.
    no_numbers, no_names = _same(None, pa.float64(), n), _same(None, pa.string(), n)
    numbers = {name: getattr(block, name) for name in ("label", "prediction", "loss", "value")}
    numbers |= {name: block.measured.get(name) for name in measured}
    names = {"group": block.group, "pair": block.pair}
    columns = {
        "perspective": _same(condition.perspective, pa.string(), n),
        "set": _same(condition.set, pa.string(), n),
        "condition": _same(condition.name, pa.string(), n),
        "parameters": _same(condition.parameters.to_text(), pa.string(), n),
        "row": hashes[id(block.row)][1],
        "index": pa.array(block.index, pa.int64()),
        "probabilities": _lists(block.probabilities),
    }
    for name, values in numbers.items():
        # NaN becomes null, because pandas and JSON confuse them.
        filled = no_numbers if values is None else pa.array(values, pa.float64(), from_pandas=True)
        columns[name] = filled
    for name, texts in names.items():
        columns[name] = no_names if texts is None else pa.array(texts, pa.string())
    whole = pa.schema([*schema(), *(pa.field(name, pa.float64()) for name in measured)])
    return pa.Table.from_arrays([columns[name] for name in whole.names], schema=whole)


def _check(table: pa.Table) -> None:
    for wanted in schema():
        if wanted.name not in table.column_names:
            raise CheckpointError(
                f"The rows have no column {wanted.name!r}, got {table.column_names}. "
                "Evaluate the model again."
            )
        result = table.schema.field(wanted.name).type
        if not result.equals(wanted.type):
            raise CheckpointError(
                f"Column {wanted.name!r} of the stored rows must be {wanted.type}, got {result}. "
                "Evaluate the model again."
            )


def _floats(table: pa.Table, name: str) -> FloatArray:
    return np.asarray(table.column(name).to_numpy(), dtype=np.float64)


def _block(part: pa.Table, condition: Condition) -> Block:
    index = part.column("index").to_numpy()
    order = np.argsort(index, kind="stable")
    part, index = part.take(pa.array(order)), index[order]
    if bool((np.diff(index) == 0).any()):
        twice = int(index[np.flatnonzero(np.diff(index) == 0)[0]])
        raise CheckpointError(
            f"The rows of {condition} have row {twice} twice. Evaluate the model again."
        )
    prediction, value = _floats(part, "prediction"), _floats(part, "value")
    added = {name: _floats(part, name) for name in part.column_names if name not in schema().names}
    # Columns of other perspectives are empty.
    measured = {name: values for name, values in added.items() if not np.isnan(values).all()}
    counted = COUNTS[0] in measured or any(name.startswith(LABEL) for name in measured)
    lists = part.column("probabilities").combine_chunks()
    lengths = np.unique(np.diff(lists.offsets.to_numpy()))
    if len(lengths) > 1:
        raise CheckpointError(
            f"Rows of {condition} differ in their number of classes: {lengths}. Evaluate again."
        )
    return Block(
        condition=condition,
        row=part.column("row").to_pylist(),
        index=index.astype(np.int64),
        label=_floats(part, "label"),
        prediction=prediction,
        probabilities=np.asarray(lists.flatten().to_numpy(), dtype=np.float64).reshape(
            len(index), -1 if int(lengths[0]) else 0
        ),
        loss=_floats(part, "loss"),
        value=value if bool(np.isnan(prediction).all()) and not counted else None,
        group=_names(part, "group"),
        pair=_names(part, "pair"),
        measured=measured,
    )


def _parameters(text: str) -> Parameters:
    try:
        return Parameters.of_text(text)
    except ValueError as error:
        raise CheckpointError(
            f"Column 'parameters' of the stored rows must contain JSON objects, got {text!r}. "
            "Evaluate the model again."
        ) from error


def _names(part: pa.Table, column: str) -> list[str | None] | None:
    result: list[str | None] = part.column(column).to_pylist()
    return result if any(name is not None for name in result) else None


STRETCH = 4096
"""Rows per chunk of a column; a column with one value stores one chunk and repeats it."""
TARGETS = ("target_loss", "target_tokens", *gap_columns("target_tokens"))
"""Columns of completions: sum of the tokens' losses, number of tokens, and gaps by bin."""


@contextmanager
def system_memory() -> Iterator[None]:
    """Make Arrow allocate memory from the system in this context, instead of from its own pool."""
    # So that it can reuse memory that the scores have freed.
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


def _same(value: str | int | None, kind: pa.DataType, rows: int) -> pa.ChunkedArray:
    """Return a column that has the same value in all rows, in the memory of one chunk."""
    stretch = pa.repeat(pa.scalar(value, kind), min(rows, STRETCH))
    whole, rest = divmod(rows, STRETCH)
    return pa.chunked_array([stretch] * whole + [stretch.slice(0, rest)] * (rest > 0), kind)


def _lists(values: FloatArray) -> pa.ChunkedArray:
    """Return a column of lists from values [n, width]; all chunks share their offsets."""
    rows, width = values.shape
    flat = pa.array(np.ascontiguousarray(values, dtype=np.float64).reshape(-1))
    indices = pa.array(np.arange(STRETCH + 1, dtype=np.int32) * width)
    parts = []
    for start in range(0, rows, STRETCH):
        size = min(STRETCH, rows - start)
        block = flat.slice(start * width, size * width)
        parts.append(pa.ListArray.from_arrays(indices.slice(0, size + 1), block))
    return pa.chunked_array(parts, pa.list_(pa.float64()))
