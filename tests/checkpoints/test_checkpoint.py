"""Checkpoints: the kind follows from the name, and the metadata is read once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from temper.checkpoints.checkpoint import Checkpoint
from temper.errors import CheckpointError, ModelError, SettingError
from temper.evaluation.function import CallablePredictor


def run(folder: Path, **record: Any) -> Checkpoint:
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return Checkpoint.of(folder)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("minilm", "weights"),
        ("owner/model", "weights"),
        ("file.py:function", "code"),
        ("package.module:function", "code"),
        ("pipeline.skops", "skops"),
    ],
)
def test_the_kind_of_a_model_follows_from_its_name(name: str, kind: str) -> None:
    assert Checkpoint(name).kind == kind


def test_a_folder_with_a_colon_is_a_folder(tmp_path: Path) -> None:
    assert run(tmp_path / "a:b").kind == "weights"


@pytest.mark.parametrize(("name", "error"), [("m.pkl", ModelError), ("m.py", SettingError)])
def test_a_pickle_and_a_file_without_a_function_raise_an_error(
    name: str, error: type[Exception]
) -> None:
    with pytest.raises(error, match=name):
        assert Checkpoint(name).kind


def test_an_object_in_memory_has_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(tmp_path / "good()", key="other")
    kept = Checkpoint.of(CallablePredictor(len, gives="values"))
    assert (kept.kind, kept.run, kept.is_calibrated) == ("object", None, False)

    def good(texts: list[str]) -> list[float]:
        return [0.0] * len(texts)

    assert Checkpoint.of(good).name == "good()"
    assert Checkpoint.of(good).key is None


def test_a_record_is_read_once(tmp_path: Path) -> None:
    model = run(tmp_path / "run", key="abc", settings={"data": {"encoding": "cp1252"}})
    assert (model.key, model.encoding) == ("abc", "cp1252")
    (model.folder / "run.json").unlink()
    assert (model.key, model.encoding) == ("abc", "cp1252")
    with pytest.raises(CheckpointError, match="has no run.json"):
        Checkpoint.of(model.folder).training_rows()


def test_runs_that_name_each_other_are_each_listed_once(tmp_path: Path) -> None:
    first = run(tmp_path / "first", model=str(tmp_path / "second"))
    second = run(tmp_path / "second", model=str(tmp_path / "first"))
    assert first.runs == [first, second]
