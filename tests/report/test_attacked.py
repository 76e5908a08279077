"""Which attacked rows a page shows."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from temper.display.folders import read
from temper.errors import CheckpointError
from temper.report.examples import OUTCOMES, gallery
from tests.report.attacked_rows import add_attacks


@pytest.fixture
def made(evaluation: Path) -> Path:
    """Return an evaluation with two attacks on embeddings and two on texts, rows shuffled."""
    add_attacks(evaluation, embedding=(0.1, 0.5), recipes=("characters", "swaps"))
    for name in ("rows", "texts"):
        path = evaluation / f"{name}.parquet"
        table = pq.read_table(path)
        # 7 and these lengths have no common divisor: every row moves, none is lost.
        order = [place * 7 % len(table) for place in range(len(table))]
        assert len(set(order)) == len(table)
        pq.write_table(table.take(order), path)
    path = evaluation / "texts.parquet"
    table = pq.read_table(path)
    # One changed text and one unchanged are missing.
    lost = [("swaps", 5), ("clean", 11)]
    kept = [(one["condition"], one["index"]) not in lost for one in table.to_pylist()]
    pq.write_table(table.filter(pa.array(kept)), path)
    return evaluation


@pytest.mark.parametrize("most", [1, 8, 1000])
def test_attacks_take_turns_and_give_those_that_broke_first(made: Path, most: int) -> None:
    shown = gallery(read(made), most=most)
    assert shown is not None
    # Of forty rows one has no clean text, and of the swaps one no changed one.
    assert shown.total == 2 * 39 + 39 + 38
    assert len(shown.shown) == min(most, shown.total)
    attacks = [(one.group, one.attack) for one in shown.shown]
    if most == 8:
        # The two perspectives in turn, and of each its two attacks.
        assert attacks[:4] == attacks[4:]
        assert [group for group, _ in attacks[:2]] == ["Embedding attack", "Text attack"]
        assert len(set(attacks[:4])) == 4
        assert {one.outcome for one in shown.shown} == {"broken"}
    for attack in set(attacks):
        own = [one for one in shown.shown if (one.group, one.attack) == attack]
        places = [(OUTCOMES.index(one.outcome), one.row) for one in own]
        assert places == sorted(places)
    for one in shown.shown:
        assert f"example {int(one.row, 16)} of dev" in "".join(words for _, words in one.text)


def test_the_radius_that_was_asked_for_is_named(evaluation: Path) -> None:
    add_attacks(evaluation, recipes=())
    shown = gallery(read(evaluation))
    assert shown is not None
    assert shown.attacks == [("Embedding attack", "PGD ℓ₂ radius 0.25 (5 steps)")]
    path = evaluation / "rows.parquet"
    rows = pq.read_table(path)
    asked = json.dumps({"norm": "l2", "steps": 5, "radius_relative": 0.125})
    rows = rows.set_column(
        rows.column_names.index("parameters"), "parameters", pa.array([asked] * len(rows))
    )
    pq.write_table(rows, path)
    shown = gallery(read(evaluation))
    assert shown is not None
    assert shown.attacks == [("Embedding attack", "PGD ℓ₂ radius 0.125 of the norm (5 steps)")]


def test_texts_without_a_line_are_no_examples(made: Path) -> None:
    path = made / "texts.parquet"
    pq.write_table(pq.read_table(path).slice(0, 0), path)
    assert gallery(read(made)) is None


@pytest.mark.parametrize(
    ("file", "said"),
    [("rows", "Cannot read the evaluated rows"), ("texts", "Cannot read the texts")],
)
def test_a_damaged_file_is_named(made: Path, file: str, said: str) -> None:
    (made / f"{file}.parquet").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=rf"{said} in .*{file}\.parquet.*Evaluate the model"):
        gallery(read(made))


def test_a_missing_column_is_named(made: Path) -> None:
    path = made / "rows.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["label"]), path)
    with pytest.raises(CheckpointError, match=r"rows\.parquet lacks the columns \['label'\]"):
        gallery(read(made))
