"""Studies with unlabeled texts: methods that use them and methods that do not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from temper.checkpoints.checkpoint import Checkpoint
from temper.data.settings import DataSettings
from temper.errors import SettingError
from temper.evaluation.request import EvaluationRequest
from temper.study.plan import StudyConfig, columns_of
from temper.study.schedule import run_study
from tests.cli.tiny_project import sentences, study_tree, write_csv
from tests.training.alternating import NAME, alternating_registered

BASE: dict[str, Any] = {"model": "minilm", "data": {"source": "demo"}}
POOL = {"source": "demo", "unlabeled": "pool.csv", "unlabeled_rows": 6}


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    with alternating_registered():
        yield


def plan(data: dict[str, Any], *methods: str) -> StudyConfig:
    return StudyConfig.of({**BASE, "data": data}, columns=columns_of(methods, ()), seeds=(0,))


def test_a_column_reads_only_the_rows_that_its_method_trains_on() -> None:
    config = plan(POOL, "plain", NAME, "at")
    read = {column: run.data.unlabeled for (column, _), run in config.runs.items()}
    assert read == {"plain": None, NAME: "pool.csv", "at": None}
    assert config.runs["plain", 0].data == DataSettings(source="demo")
    assert config.data == DataSettings.model_validate(POOL)
    assert plan({"source": "demo"}, "plain", "at").data == DataSettings(source="demo")


def test_unlabeled_text_does_not_change_the_keys_of_other_columns() -> None:
    hashes = {"model": "m", "train_hash": "t", "dev_hash": "d"}
    with_it, without = plan(POOL, "plain", NAME), plan({"source": "demo"}, "plain")
    assert with_it.runs["plain", 0].key(**hashes) == without.runs["plain", 0].key(**hashes)


def test_text_that_no_column_trains_on_raises_an_error() -> None:
    with pytest.raises(SettingError, match=r"no method trains on it \('plain', 'at'\).*Leave"):
        plan(POOL, "plain", "at")


def test_a_study_trains_both_kinds_of_columns_and_records_it(
    tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    pool = write_csv(tmp_path / "pool.csv", sentences(20, thing="it"))
    train = {"max_steps": None, "epochs": 1, "batch_size": 20}
    tree = study_tree(tiny_model, tiny_data / "reviews", train=train)
    tree["data"] |= {"unlabeled": str(pool), "unlabeled_rows": 8}
    config = StudyConfig.of(tree, columns=columns_of(["plain", NAME], ()), seeds=(0,))
    out = tmp_path / "study"
    study = run_study(config, out)
    assert list(study.comparison.columns) == ["plain", NAME]
    planned = json.loads((out / "study.json").read_text(encoding="utf-8"))
    assert planned["data"]["unlabeled"] == str(pool)
    runs = {name: out / planned["runs"][name]["0"] for name in ("plain", NAME)}
    record = {name: json.loads((run / "run.json").read_text()) for name, run in runs.items()}
    assert [record[name]["times"]["steps"] for name in runs] == [2, 3]
    assert "unlabeled" not in record["plain"]["data"]
    assert record[NAME]["data"]["unlabeled"]["rows"] == 8
    assert record["plain"]["notices"] == []
    assert record[NAME]["notices"] == [f"8 rows of unlabeled text from {pool}"]
    # The run's own dev rows are found again though the text is gone.
    pool.unlink()
    tree = {"data": {"source": str(tiny_data / "reviews")}, "predictor": {"device": "cpu"}}
    request = EvaluationRequest.of(tree, model=Checkpoint.of(runs[NAME]))
    dev = request.rows(request.load())
    assert dev.hash == record[NAME]["data"]["dev"]["hash"]
