"""A kept study has the numbers of its source, and damage is reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reproduction.kept import keep_study, own_part, shared
from temper.checkpoints.folder import check_study_folder
from temper.display.folders import joined, read
from temper.errors import CheckpointError
from temper.report import comparison
from tests.reproduction.kept_studies import write_study

VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(0, 2), st.just(1.0), st.lists(st.integers(0, 1))
)
RECORDS = st.lists(
    st.dictionaries(
        st.sampled_from("abc"), VALUES | st.dictionaries(st.sampled_from("ab"), VALUES)
    ),
    max_size=4,
)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Return a study whose scores have parameters under several names."""
    folder = write_study(tmp_path / "study", {"plain": (0.8, 0.7, 0.9), "uegr": (0.7, 0.7, 0.8)})
    conditions = (
        {
            "perspective": "embedding_noise",
            "condition": "noise",
            "parameters": {"sigma_relative": 0.25},
        },
        {"perspective": "token_corruption", "condition": "mask", "parameters": {"rate": 0.1}},
        {
            "perspective": "embedding_attack",
            "condition": "pgd",
            "parameters": {"radius": 0.5, "steps": 5},
        },
        {"perspective": "calibration", "name": "ece_10", "value": None, "reason": "No rows."},
    )
    for file in folder.glob("runs/*/evaluation/scores.json"):
        content = json.loads(file.read_text(encoding="utf-8"))
        first = content["scores"][0]
        content["scores"] += [{**first, **condition} for condition in conditions]
        file.write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.fixture
def kept(study: Path, tmp_path: Path) -> Path:
    """Return that study as it is kept."""
    keep_study(read(study), tmp_path / "kept")
    return tmp_path / "kept"


def test_a_saved_study_has_the_same_scores_records_and_names(study: Path, kept: Path) -> None:
    for result, run in zip(read(kept).runs, read(study).runs, strict=True):
        assert (result.name, result.record) == (run.name, run.record)
        assert result.scores.task == run.scores.task
    now, before = comparison(kept).to_json(), comparison(study).to_json()
    assert now["rows"] == before["rows"]
    assert now["headline"] == before["headline"]


def test_a_saved_study_can_be_saved_again(kept: Path, tmp_path: Path) -> None:
    keep_study(read(kept), tmp_path / "again")
    for file in kept.iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()


def test_a_run_without_saved_scores_is_missing(study: Path, tmp_path: Path) -> None:
    (study / "runs" / "uegr-s1-key" / "evaluation" / "scores.json").unlink()
    keep_study(read(study), tmp_path / "kept")
    assert read(tmp_path / "kept").missing == ("uegr, seed 1: its scores were not stored.",)


@pytest.mark.parametrize("text", [b"", b"no parquet"])
def test_a_damaged_file_raises_an_error(kept: Path, text: bytes) -> None:
    (kept / "scores.parquet").write_bytes(text)
    with pytest.raises(CheckpointError, match="cannot be read"):
        read(kept)


@pytest.mark.parametrize("value", [1e300, -1e300])
def test_an_impossible_score_raises_an_error(kept: Path, value: float) -> None:
    table = pq.read_table(kept / "scores.parquet")
    index = table.schema.get_field_index("value")
    values = [value, *table["value"].to_pylist()[1:]]
    pq.write_table(table.set_column(index, "value", pa.array(values)), kept / "scores.parquet")
    with pytest.raises(CheckpointError, match=r"cannot be read[\s\S]*value"):
        comparison(kept)


def test_a_saved_study_cannot_be_resumed(kept: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be resumed"):
        check_study_folder(kept)


@given(RECORDS)
def test_shared_and_own_parts_of_records_round_trip(records: list[dict[str, Any]]) -> None:
    common = shared(records)
    for record in records:
        whole = joined(common, own_part(record, common))
        assert json.dumps(whole, sort_keys=True) == json.dumps(record, sort_keys=True)
