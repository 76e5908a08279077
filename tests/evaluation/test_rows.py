"""Evaluation rows: values are unchanged, and files are complete or absent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper import memory
from temper.data.stored import RowHashes
from temper.display.records import Parameters
from temper.errors import CheckpointError, MemoryLimitError
from temper.evaluation import rows as rows_module
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.folder import GROUP
from temper.evaluation.rows import Block, Condition, schema, to_blocks, to_table
from temper.evaluation.run import (
    Evaluation,
    EvaluationData,
    EvaluationSettings,
    evaluate,
    read,
    write,
)
from temper.lazy import parquet as pq


def block(
    name: str = "clean",
    *,
    rows: int = 3,
    radius: float | None = None,
    relative: bool = False,
    norms: Any = (2.0, 4.0, 5.0),
    classes: int = 2,
    **condition: Any,
) -> Block:
    asked = {} if radius is None else {"radius_relative" if relative else "radius": radius}
    draw = np.random.default_rng(rows + classes)
    return Block(
        condition=Condition("embedding_attack", "dev", name, Parameters(asked, **condition)),
        row=[f"{number:016x}" for number in range(rows)],
        index=np.arange(rows),
        label=np.asarray([0.0, np.nan, 1.0])[:rows],
        prediction=np.asarray([0.0, 1.0, 1.0])[:rows],
        probabilities=draw.random((rows, classes)),
        loss=np.asarray([0.5, np.nan, np.inf])[:rows],
        measured={} if radius is None else {"radius": radius * np.asarray(norms)[:rows]},
    )


def assert_equal(first: Block, second: Block) -> None:
    assert first.condition == second.condition
    assert first.row == second.row
    for name in ("index", "label", "prediction", "probabilities", "loss"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    assert first.measured.keys() == second.measured.keys()
    for name, values in first.measured.items():
        np.testing.assert_array_equal(values, second.measured[name])
    assert first.probabilities.shape == second.probabilities.shape


@pytest.mark.parametrize("relative", [False, True])
def test_blocks_round_trip_through_a_shuffled_table(tmp_path: Any, relative: bool) -> None:
    blocks = [
        block(),
        block("fgm", radius=0.1, relative=relative, norm="l2", steps=1, restarts=1),
        block("fgm", radius=0.25, relative=relative, norm="l2", steps=1, restarts=1),
        block("fgm", radius=0.1, relative=relative, norm="linf", steps=1, restarts=1),
        block("pgd", radius=0.1, relative=relative, norm="l2", steps=3, restarts=2),
    ]
    table = to_table(blocks)
    assert table.schema == pa.schema([*schema(), pa.field("radius", pa.float64())])
    pq.write_table(table, tmp_path / "rows.parquet")
    back = pq.read_table(tmp_path / "rows.parquet")
    for first, second in zip(blocks, to_blocks(back), strict=True):
        assert_equal(first, second)
    order = np.random.default_rng(0).permutation(len(back))
    result = {b.condition: b for b in to_blocks(back.take(pa.array(order)))}
    for one in blocks:
        assert_equal(one, result[one.condition])


VALUES = st.one_of(
    st.text(max_size=4),
    st.booleans(),
    st.integers(-9, 9),
    st.floats(allow_nan=False, allow_infinity=False),
)


@given(st.lists(st.dictionaries(st.text(max_size=6), VALUES, max_size=3), min_size=1, max_size=4))
def test_conditions_round_trip_with_any_parameters(
    named: list[dict[str, Any]],
) -> None:
    conditions = list(
        dict.fromkeys(Condition("mine", "dev", "noise", Parameters(values)) for values in named)
    )
    blocks = [replace(block(), condition=condition) for condition in conditions]
    assert [one.condition for one in to_blocks(to_table(blocks))] == conditions


def test_a_measured_column_named_like_another_raises_an_error() -> None:
    with pytest.raises(ValueError, match="names of other columns: loss"):
        replace(block(), measured={"loss": np.zeros(3)})


def test_a_regression_has_no_probabilities_and_unlabeled_rows_are_null() -> None:
    table = to_table([block(classes=0)])
    assert table.column("probabilities").to_pylist() == [[], [], []]
    assert table.column("label").to_pylist() == [0.0, None, 1.0]
    assert table.column("loss").to_pylist() == [0.5, None, float("inf")]
    (back,) = to_blocks(table)
    assert not back.classifies
    assert back.probabilities.shape == (3, 0)


def test_pandas_reads_the_rows_unchanged() -> None:
    frame = to_table([block(), block("fgm", radius=0.5, norm="l2")]).to_pandas()
    assert frame["radius"].isna().tolist() == [True] * 3 + [False] * 3
    assert frame["parameters"].tolist() == ["{}"] * 3 + ['{"norm": "l2", "radius": 0.5}'] * 3
    assert frame["index"].dtype == np.int64


def test_no_rows_are_an_empty_table_of_the_same_columns() -> None:
    assert to_table([]).schema == schema()
    assert to_blocks(to_table([])) == []


def test_damaged_rows_raise_an_error() -> None:
    table = to_table([block()])
    position = table.schema.get_field_index("parameters")
    broken = table.set_column(position, schema().field(position), pa.array(["radius"] * 3))
    with pytest.raises(CheckpointError, match="Column 'parameters' .* got 'radius'"):
        to_blocks(broken)
    with pytest.raises(CheckpointError, match="have no column 'loss'"):
        to_blocks(table.drop_columns(["loss"]))
    position = table.schema.get_field_index("index")
    texts = table.set_column(position, "index", pa.array(["0", "1", "2"]))
    with pytest.raises(CheckpointError, match="'index' .*int64, got str"):
        to_blocks(texts)
    with pytest.raises(CheckpointError, match="have row 0 twice"):
        to_blocks(pa.concat_tables([table, table]))
    mixed = to_table([block(), block("noise", classes=3)])
    position = table.schema.get_field_index("condition")
    mixed = mixed.set_column(position, schema().field(position), pa.array(["clean"] * 6))
    index = table.schema.get_field_index("index")
    mixed = mixed.set_column(index, schema().field(index), pa.array(list(range(6))))
    with pytest.raises(CheckpointError, match="number of classes"):
        to_blocks(mixed)


def large(rows: int, name: str, hashes: RowHashes) -> Block:
    draw = np.random.default_rng(rows)
    return Block(
        condition=Condition("task", "dev", name),
        row=hashes,
        index=np.arange(rows),
        label=draw.integers(0, 2, rows).astype(np.float64),
        prediction=draw.integers(0, 2, rows).astype(np.float64),
        probabilities=draw.random((rows, 2)),
        loss=draw.random(rows),
    )


@pytest.mark.parametrize("stretch", [1, 3, 4, 7, 100])
def test_rows_written_in_chunks_equal_rows_written_at_once(
    monkeypatch: pytest.MonkeyPatch, stretch: int
) -> None:
    hashes = RowHashes.of(map(str, range(7)))
    blocks = [large(7, "clean", hashes), block("fgm", radius=0.1, norm="l2", steps=1, restarts=1)]
    whole = to_table(blocks)
    monkeypatch.setattr(rows_module, "STRETCH", stretch)
    assert to_table(blocks).equals(whole)
    for first, second in zip(blocks, to_blocks(to_table(blocks)), strict=True):
        assert_equal(first, second)


def test_a_table_stores_row_hashes_once_per_set() -> None:
    rows = 100_000
    hashes = RowHashes.of(map(str, range(rows)))
    blocks = [large(rows, name, hashes) for name in ("clean", "temperature")]
    pool = pa.system_memory_pool()
    before = pool.bytes_allocated()
    table = to_table(blocks)
    # A hash is 16 digits and 4 bytes of where it ends; a stretch of each empty column is little.
    assert 20 * rows < pool.bytes_allocated() - before < 21 * rows + 1e6
    assert len(table) == 2 * rows


def test_rows_are_written_in_groups(tmp_path: Any) -> None:
    rows = GROUP + 1
    table = to_table([large(rows, "clean", RowHashes.of(map(str, range(rows))))])
    write(Evaluation(table, []), tmp_path / "evaluation")
    file = pq.ParquetFile(tmp_path / "evaluation" / "rows.parquet")
    assert [file.metadata.row_group(index).num_rows for index in range(2)] == [GROUP, 1]
    assert file.read().equals(table)


CLEAN = EvaluationSettings(perspectives=("task", "shift", "calibration", "anomaly"), bootstrap=50)


def test_an_evaluation_replaces_an_older_one(
    predictor: ClassifierPredictor, data: EvaluationData, tmp_path: Path
) -> None:
    result = evaluate(predictor, data, CLEAN)
    out = tmp_path / "deep" / "evaluation"
    write(result, out)
    write(result, out)
    assert sorted(path.name for path in out.parent.iterdir()) == ["evaluation"]
    files = ["rows.parquet", "scores.json", "texts.parquet"]
    assert sorted(path.name for path in out.iterdir()) == files


def test_a_failed_write_keeps_the_older_evaluation_and_no_leftovers(
    predictor: ClassifierPredictor, data: EvaluationData, tmp_path: Path
) -> None:
    result = evaluate(predictor, data, CLEAN)
    write(result, tmp_path / "evaluation")
    broken = Evaluation(result.rows, [{"value": float("nan")}])
    with pytest.raises(ValueError, match="not JSON compliant"):
        write(broken, tmp_path / "evaluation")
    assert read(tmp_path / "evaluation") == result
    assert [path.name for path in tmp_path.iterdir()] == ["evaluation"]


def test_rows_larger_than_memory_raise_an_error_before_reading(
    predictor: ClassifierPredictor,
    data: EvaluationData,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = write(evaluate(predictor, data, CLEAN), tmp_path / "evaluation")
    metadata = pq.ParquetFile(out / "rows.parquet").metadata
    wanted = sum(
        metadata.row_group(group).column(column).total_uncompressed_size
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    )
    monkeypatch.setattr(memory, "free_memory", lambda: wanted)
    assert read(out).rows.num_rows == metadata.num_rows
    monkeypatch.setattr(memory, "free_memory", lambda: wanted - 1)
    monkeypatch.setattr(pq, "read_table", None)
    with pytest.raises(MemoryLimitError, match=r"rows in .*rows\.parquet take at least .* of mem"):
        read(out)


def test_damaged_evaluations_raise_an_error(
    predictor: ClassifierPredictor, data: EvaluationData, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match="Cannot read the evaluation in"):
        read(tmp_path / "none")
    out = write(evaluate(predictor, data, CLEAN), tmp_path / "evaluation")
    scores = out / "scores.json"
    whole = scores.read_text()
    scores.write_text(whole.replace('"schema": 1', '"schema": 2'))
    with pytest.raises(CheckpointError, match="has schema 2.* reads schema 1"):
        read(out)
    scores.write_text(whole.replace('"schema": 1,', ""))
    with pytest.raises(CheckpointError, match=r"lacks \['schema'\]"):
        read(out)
    scores.write_text(whole[:-20])
    with pytest.raises(CheckpointError, match="Cannot read the evaluation in"):
        read(out)
    scores.write_text(whole)
    (out / "rows.parquet").write_bytes(b"PAR1")
    with pytest.raises(CheckpointError, match="Cannot read the evaluation in"):
        read(out)
