"""Which attacked rows a page shows."""

from __future__ import annotations

import json
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from temper.display.folders import read
from temper.errors import CheckpointError
from temper.report.examples import gallery
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


def sorted_whole(evaluation: Path) -> list[tuple[str, float | None, str]]:
    """Return condition, radius and row of all examples: everything in memory, sorted, in turn."""
    rows = pq.read_table(evaluation / "rows.parquet").to_pylist()
    texts = pq.read_table(evaluation / "texts.parquet").to_pylist()
    known = {(one["perspective"], one["condition"], one["index"]) for one in texts}
    clean = {one["index"]: one["prediction"] for one in rows if one["perspective"] == "task"}
    parts: dict[str, dict[Any, list[Any]]] = {"embedding_attack": {}}
    for changed in [one["perspective"] for one in texts if one["perspective"]]:
        parts.setdefault(changed, {})
    for one in rows:
        perspective, condition, index = one["perspective"], one["condition"], one["index"]
        if perspective not in parts or (None, "clean", index) not in known:
            continue
        if perspective == "text_attack" and (perspective, condition, index) not in known:
            continue
        right, still = clean[index] == one["label"], one["prediction"] == one["label"]
        place = (0 if not still else 1) if right else 2
        radius = json.loads(one["parameters"]).get("radius")
        named = parts[perspective].setdefault((condition, radius), [])
        named.append((place, one["row"], condition, radius))

    def in_turn(lists: Any) -> list[Any]:
        return [one for turn in zip_longest(*lists) for one in turn if one is not None]

    turns = [in_turn(sorted(part) for part in own.values()) for own in parts.values()]
    return [(condition, radius, row) for _, row, condition, radius in in_turn(turns)]


@pytest.mark.parametrize("most", [1, 5, 50, 1000])
def test_a_page_shows_what_sorting_everything_would(made: Path, most: int) -> None:
    wanted = sorted_whole(made)
    shown = gallery(read(made), most=most)
    assert shown is not None
    assert shown.total == len(wanted) == 2 * 39 + 39 + 38
    names = {"characters": "character edits", "swaps": "word swaps"}
    said = [
        (names.get(condition) or f"PGD ℓ₂ radius {radius:g} (5 steps)", row)
        for condition, radius, row in wanted[:most]
    ]
    assert [(one.attack, one.row) for one in shown.shown] == said
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
