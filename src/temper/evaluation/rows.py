"""The rows that every perspective writes: one line per example, set, perspective and condition.

A `Block` holds the rows of one condition as arrays; a table holds blocks one after the other and is
what ``rows.parquet`` keeps (docs/formats.md). Scores are computed from a table alone. A table
shares its blocks' arrays, and blocks of one set share its hashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from temper.data.hashes import hashes_at
from temper.errors import CheckpointError
from temper.evaluation import columns
from temper.functional.resampling import FloatArray, IntegerArray, stretches

SCHEMA = pa.schema(
    [
        pa.field("perspective", pa.string(), nullable=False),
        pa.field("set", pa.string(), nullable=False),
        pa.field("condition", pa.string(), nullable=False),
        pa.field("radius", pa.float64()),
        pa.field("radius_relative", pa.float64()),
        pa.field("norm", pa.string()),
        pa.field("steps", pa.int64()),
        pa.field("restarts", pa.int64()),
        pa.field("row", pa.string(), nullable=False),
        pa.field("index", pa.int64(), nullable=False),
        pa.field("label", pa.float64()),
        pa.field("prediction", pa.float64()),
        pa.field("probabilities", pa.list_(pa.float64()), nullable=False),
        pa.field("loss", pa.float64()),
        pa.field("layer", pa.int64()),
        pa.field("value", pa.float64()),
        pa.field("group", pa.string()),
        pa.field("pair", pa.string()),
        pa.field("queries", pa.int64()),
        pa.field("changed", pa.float64()),
    ]
)

# Tables from before these columns have no rows that need them.
_ADDED = ("layer", "value", "group", "pair", "queries", "changed")
_KEYS = ("perspective", "set", "condition", "norm", "steps", "restarts", "layer")


@dataclass(frozen=True)
class Condition:
    """What was done to the examples of a block.

    Args:
        perspective: Name of the perspective.
        set: Name of the data set.
        name: ``clean``, ``fgm``, ``pgd``, ``noise``, ``random``, ``mask`` or ``drop``; of values
            what was measured, ``jacobian`` or ``hessian``.
        norm: ``l2`` or ``linf``, None without an attack.
        steps: Gradient steps of the attack.
        restarts: Restarts of the attack.
        layer: Of the model, from 1, where a value belongs to one.
    """

    perspective: str
    set: str
    name: str = "clean"
    norm: str | None = None
    steps: int | None = None
    restarts: int | None = None
    layer: int | None = None


@dataclass(frozen=True)
class Block:
    """The rows of one condition, by position in their set: answers, or values (`of_values`).

    Args:
        condition: What was done.
        row: Hash of each text, n of them.
        index: Position of each row in its set, [n].
        label: Class index or target, [n]; NaN where unlabelled.
        prediction: Class index or predicted value, [n]; NaN where the rows hold values.
        probabilities: [n, C]; [n, 0] for a regression and where the rows hold values.
        loss: NLL or squared error, [n]; NaN where unlabelled.
        radius: Budget, sigma or rate of each row, [n], None without one.
        radius_relative: The same over the example's own embeddings, [n], None without one.
        relative: Whether ``radius_relative`` is the setting and ``radius`` follows from it.
        value: What was measured of each row, [n]; None where the rows hold answers.
        group: Group that each row belongs to, [n]; None where the set has no groups.
        pair: Rows of one contrast pair share its name, [n]; None where the set has no pairs.
        queries: Texts that an attack asked the predictor about, for each row, [n]; None without.
        changed: Words that an attack changed over the words of the text, [n]; None without.
    """

    condition: Condition
    row: Sequence[str]
    index: IntegerArray
    label: FloatArray
    prediction: FloatArray
    probabilities: FloatArray = field(repr=False)
    loss: FloatArray = field(repr=False)
    radius: FloatArray | None = None
    radius_relative: FloatArray | None = None
    relative: bool = False
    value: FloatArray | None = None
    group: Sequence[str | None] | None = None
    pair: Sequence[str | None] | None = None
    queries: IntegerArray | None = None
    changed: FloatArray | None = None

    @classmethod
    def of_values(
        cls, condition: Condition, row: Sequence[str], index: IntegerArray, value: FloatArray
    ) -> Block:
        """Return rows that hold a measured value each and no answer.

        Args:
            condition: What was measured.
            row: Hash of each text, n of them.
            index: Position of each row in its set, [n].
            value: [n]; NaN where there is none.
        """
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
        """Return the number of rows."""
        return len(self.row)

    @property
    def setting(self) -> float | None:
        """The radius, sigma or rate that was asked for, in the unit it was asked in."""
        values = self.radius_relative if self.relative else self.radius
        return None if values is None or not len(values) else float(values[0])

    @property
    def classifies(self) -> bool:
        """Whether the rows hold class probabilities."""
        return bool(self.probabilities.shape[1] > 0)

    @property
    def confidence(self) -> FloatArray:
        """Probability of the predicted class, [n]."""
        found = np.empty(len(self))
        for rows in stretches(len(self)):
            chosen = self.prediction[rows].astype(np.int64)
            found[rows] = self.probabilities[rows][np.arange(len(chosen)), chosen]
        return found

    @property
    def correct(self) -> FloatArray:
        """1 where the prediction is the label, else 0, [n]."""
        return np.asarray(self.prediction == self.label, dtype=np.float64)


def rows_at(clean: Block, block: Block) -> Block:
    """Return the clean rows at a block's positions.

    Args:
        clean: Clean rows of the whole set, by position.
        block: Rows of some of them.
    """
    places = np.searchsorted(clean.index, block.index)
    return replace(
        clean,
        row=hashes_at(clean.row, places),
        index=clean.index[places],
        label=clean.label[places],
        prediction=clean.prediction[places],
        probabilities=clean.probabilities[places],
        loss=clean.loss[places],
        group=None if clean.group is None else [clean.group[place] for place in places],
        pair=None if clean.pair is None else [clean.pair[place] for place in places],
    )


def to_table(blocks: Iterable[Block]) -> pa.Table:
    """Write blocks one after the other as a table.

    Args:
        blocks: Blocks in the order they shall stand.

    Returns:
        A table with `SCHEMA`.
    """
    hashes: dict[int, tuple[Sequence[str], pa.ChunkedArray]] = {}
    with columns.system_memory():
        parts = [_block_table(block, hashes) for block in blocks]
    # Chunk by chunk as they are: made one, the rows would stand in memory twice.
    return pa.concat_tables(parts) if parts else SCHEMA.empty_table()


def to_blocks(table: pa.Table) -> list[Block]:
    """Read the blocks of a table.

    Whether a block's radii were given as absolute or relative stands in no column. It follows from
    the rows: the radii that were asked for are the same for all examples, so they take fewer
    distinct values than what each example's own embeddings make of them. Where these are all of one
    size (one row alone, for instance) nothing tells the two apart, and they count as absolute.

    Args:
        table: A table with `SCHEMA`; one from before layers and values counts as having none.

    Returns:
        Blocks in the order of their first rows; rows within a block sorted by position.

    Raises:
        CheckpointError: A column is missing or has another type, or a row stands twice in a block.
    """
    table = _completed(table)
    _check(table)
    codes = _codes([_column(table, name) for name in _KEYS])
    return [
        block
        for members in _groups(codes)
        for block in _radius_blocks(table.take(pa.array(members)))
    ]


def _block_table(
    block: Block, hashes: dict[int, tuple[Sequence[str], pa.ChunkedArray]]
) -> pa.Table:
    """Write one block; hashes that were written before are known by the object that holds them."""
    n, condition = len(block), block.condition
    # Most columns of a block are empty; those of one type are one.
    empty = (pa.string(), pa.int64(), pa.float64())
    nothing = {kind: columns.same(None, kind, n) for kind in empty}
    if id(block.row) not in hashes:
        hashes[id(block.row)] = (block.row, columns.hashes(block.row))

    def same(value: str | int | None, kind: pa.DataType) -> pa.ChunkedArray:
        return nothing[kind] if value is None else columns.same(value, kind, n)

    def given(
        values: Sequence[str | None] | IntegerArray | None, kind: pa.DataType
    ) -> pa.Array | pa.ChunkedArray:
        return nothing[kind] if values is None else pa.array(values, kind)

    def number(values: FloatArray | None) -> pa.Array | pa.ChunkedArray:
        return nothing[pa.float64()] if values is None else columns.numbers(values)

    written = [
        same(condition.perspective, pa.string()),
        same(condition.set, pa.string()),
        same(condition.name, pa.string()),
        number(block.radius),
        number(block.radius_relative),
        same(condition.norm, pa.string()),
        same(condition.steps, pa.int64()),
        same(condition.restarts, pa.int64()),
        hashes[id(block.row)][1],
        pa.array(block.index, pa.int64()),
        number(block.label),
        number(block.prediction),
        columns.lists(block.probabilities),
        number(block.loss),
        same(condition.layer, pa.int64()),
        number(block.value),
        given(block.group, pa.string()),
        given(block.pair, pa.string()),
        given(block.queries, pa.int64()),
        number(block.changed),
    ]
    return pa.Table.from_arrays(written, schema=SCHEMA)


def _completed(table: pa.Table) -> pa.Table:
    """Add the columns that tables of earlier versions lack."""
    for name in _ADDED:
        if name not in table.column_names:
            kind = SCHEMA.field(name).type
            table = table.append_column(name, pa.nulls(len(table), kind))
    return table


def _check(table: pa.Table) -> None:
    """Refuse a table that is not what docs/formats.md describes."""
    for wanted in SCHEMA:
        if wanted.name not in table.column_names:
            raise CheckpointError(
                f"The rows have no column {wanted.name!r}, got {table.column_names}. "
                "Evaluate the model again."
            )
        found = table.schema.field(wanted.name).type
        if not found.equals(wanted.type):
            raise CheckpointError(
                f"Column {wanted.name!r} of the rows must be {wanted.type}, got {found}. "
                "Evaluate the model again."
            )


def _column(table: pa.Table, name: str) -> Any:
    """Return a column as one array."""
    column = table.column(name)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _floats(table: pa.Table, name: str) -> FloatArray:
    """Return a nullable column as float64 with NaN for null."""
    return np.asarray(_column(table, name).to_numpy(zero_copy_only=False), dtype=np.float64)


def _codes(keys: list[Any]) -> IntegerArray:
    """Number the distinct rows of some columns."""
    codes = np.zeros(len(keys[0]), dtype=np.int64)
    for column in keys:
        encoded = column.dictionary_encode(null_encoding="encode")
        indices = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        codes = codes * (len(encoded.dictionary) + 1) + indices
        # Renumbered after each column, so that the product cannot overflow.
        codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    return codes


def _groups(codes: IntegerArray) -> list[IntegerArray]:
    """Return the members of each code, in the order of first appearance."""
    if not len(codes):
        return []
    _, first = np.unique(codes, return_index=True)
    order = np.argsort(codes, kind="stable")
    cuts = np.flatnonzero(np.diff(codes[order])) + 1
    parts = np.split(order, cuts)
    return [parts[place] for place in np.argsort(first, kind="stable")]


def _radius_blocks(part: pa.Table) -> list[Block]:
    """Split the rows of one condition by the radius that was asked for."""
    absolute, relative = _floats(part, "radius"), _floats(part, "radius_relative")
    given = not bool(np.isnan(absolute).all())
    distinct = [len(np.unique(values[~np.isnan(values)])) for values in (absolute, relative)]
    is_relative = given and 0 < distinct[1] < distinct[0]
    setting = relative if is_relative else absolute
    codes = np.unique(setting, return_inverse=True)[1].astype(np.int64)
    return [
        _block(part.take(pa.array(members)), given=given, relative=is_relative)
        for members in _groups(codes)
    ]


def _block(part: pa.Table, *, given: bool, relative: bool) -> Block:
    """Read one block, its rows sorted by position."""
    index = _column(part, "index").to_numpy()
    order = np.argsort(index, kind="stable")
    part, index = part.take(pa.array(order)), index[order]
    keys = {name: _column(part, name)[0].as_py() for name in _KEYS}
    name = keys.pop("condition")
    condition = Condition(name=name, **keys)
    if bool((np.diff(index) == 0).any()):
        twice = int(index[np.flatnonzero(np.diff(index) == 0)[0]])
        raise CheckpointError(f"Row {twice} stands twice in the rows of {condition}.")
    prediction, value, changed = (
        _floats(part, name) for name in ("prediction", "value", "changed")
    )
    lists = _column(part, "probabilities")
    lengths = np.unique(np.diff(lists.offsets.to_numpy()))
    if len(lengths) > 1:
        raise CheckpointError(f"Rows of {condition} differ in their number of classes: {lengths}.")
    return Block(
        condition=condition,
        row=_column(part, "row").to_pylist(),
        index=index.astype(np.int64),
        label=_floats(part, "label"),
        prediction=prediction,
        probabilities=np.asarray(lists.flatten().to_numpy(), dtype=np.float64).reshape(
            len(index), -1 if int(lengths[0]) else 0
        ),
        loss=_floats(part, "loss"),
        radius=_floats(part, "radius") if given else None,
        radius_relative=_floats(part, "radius_relative") if given else None,
        relative=relative,
        value=value if bool(np.isnan(prediction).all()) else None,
        group=_names(part, "group"),
        pair=_names(part, "pair"),
        queries=_counts(part, "queries"),
        changed=changed if bool((~np.isnan(changed)).any()) else None,
    )


def _names(part: pa.Table, column: str) -> list[str | None] | None:
    """Return a column of names, None where it holds none."""
    found: list[str | None] = part.column(column).to_pylist()
    return found if any(name is not None for name in found) else None


def _counts(part: pa.Table, column: str) -> IntegerArray | None:
    """Return a column of counts, None where one is missing."""
    values = part.column(column)
    return None if values.null_count else np.asarray(values.to_numpy(), dtype=np.int64)
