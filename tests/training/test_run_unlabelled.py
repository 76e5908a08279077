"""One run with unlabeled texts: its metadata, its key, and refusals before any work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from temper.data.sources import load_examples, load_splits
from temper.errors import CheckpointError, SettingError
from temper.training.config import RunConfig, run_key
from temper.training.run import train
from tests.cli.tiny_project import make_data, make_model, sentences, write_csv
from tests.training.alternating import NAME, alternating_registered
from tests.training.tiny_training import (
    record,
    settings_of_run,
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("project")
    make_model(folder / "model")
    make_data(folder / "data")
    # Two of these twenty texts are in dev, and their labels say nothing.
    other = [(text, "?") for text, _ in sentences(18, thing="it")]
    write_csv(folder / "pool.csv", other + sentences(2, thing="phone"))
    with alternating_registered():
        yield folder


def config(project: Path, method: str = NAME, **data: Any) -> RunConfig:
    unlabeled = {"unlabeled": str(project / "pool.csv")} if method == NAME else {}
    # 40 and 20 rows in tens: four steps and two an epoch.
    tree = settings_of_run(project, method=method, data={**unlabeled, **data}, epochs=1)
    return RunConfig.of({**tree, "train": {**tree["train"], "batch_size": 10}})


@pytest.fixture(scope="module")
def whole(project: Path) -> Path:
    return train(config(project), project / "whole")


def test_the_metadata_names_the_unlabeled_rows(project: Path, whole: Path) -> None:
    content = record(whole)
    assert content["times"]["steps"] == 6
    rows = load_examples(str(project / "pool.csv"), labeled=False)
    expected = {"rows": 20, "hash": rows.hash, "truncated": 0.0, "source": rows.source}
    expected["text_pair"] = False
    assert content["data"]["unlabeled"] == expected
    assert content["settings"]["data"]["unlabeled"] == str(project / "pool.csv")
    assert any("2 unlabeled rows are also" in notice for notice in content["notices"])
    lines = map(json.loads, (whole / "metrics.jsonl").read_text().splitlines())
    logs = [line for line in lines if "loss" in line]
    assert ["loss/task" in log for log in logs] == [True] * 4 + [False] * 2
    assert ["loss/size" in log for log in logs] == [False] * 4 + [True] * 2


def test_other_unlabeled_rows_are_another_run(project: Path, whole: Path) -> None:
    with pytest.raises(CheckpointError, match=r"data\.unlabeled_rows: None -> 10"):
        train(config(project, unlabeled_rows=10), whole)


def test_a_method_without_unlabeled_rows_ignores_them(project: Path) -> None:
    splits = load_splits(config(project).data)
    plain = config(project, "plain")
    alone = load_splits(plain.data)
    assert run_key(plain, splits) == run_key(plain, alone)
    assert run_key(config(project), splits) != run_key(config(project, unlabeled_rows=9), alone)
    with_them = train(plain, project / "shared", splits=splits)
    without = train(plain, project / "own")
    names = ("model.safetensors", "metrics.jsonl")
    assert all((with_them / n).read_bytes() == (without / n).read_bytes() for n in names)
    one, other = record(with_them), record(without)
    assert {**one, "times": 0} == {**other, "times": 0}
    assert list(one["data"]) == ["train", "dev"]
    assert one["notices"] == []


def test_splits_without_the_unlabeled_rows_of_the_settings_raise_an_error(project: Path) -> None:
    splits = replace(load_splits(config(project).data), unlabeled=None)
    with pytest.raises(SettingError, match="'alternating' also trains on unlabeled text"):
        train(config(project), project / "lacking" / "run", splits=splits)
    assert not (project / "lacking").exists()
