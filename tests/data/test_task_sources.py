"""Known tasks on the Hub and in folders: how a source is found and recognized, and its labels."""

from __future__ import annotations

from pathlib import Path

import datasets
import pytest

from temper.data.settings import DataSettings
from temper.data.sources import load_splits, load_task_dev
from temper.data.tasks.registry import TASKS, default_metric, task_of, task_source
from temper.errors import DataError, SettingError
from temper.functional.scores import metrics_of
from tests.data.task_files import (
    hub_cache,
    plain_folder,
    splits_of,
)

ENTAILMENT = ("entailment", "not_entailment")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    return tmp_path


def settings(task: str, root: Path, **more: object) -> DataSettings:
    return DataSettings(task=task, source=task_source(task, root), **more)  # type: ignore[arg-type]


def test_a_task_on_the_hub_needs_no_source(cache: Path) -> None:
    hub_cache(
        cache, "nyu-mll/glue", "qqp", columns=["question1", "question2"],
        # Whatever order the copy has, the task's own is taken by name.
        names=["duplicate", "not_duplicate"],
        splits={"train": [0, 1, 1], "validation": [1, 0], "test": [-1, -1]},
    )  # fmt: skip
    splits = load_splits(DataSettings(task="qqp"))
    assert splits.train.label_names == ("not_duplicate", "duplicate")
    assert (splits.train.labels, splits.dev.labels) == ([1, 0, 0], [0, 1])
    assert splits.train.text_pair == [f"question2 of train {n}" for n in range(3)]
    assert splits.dev.source["id"] == "nyu-mll/glue"
    assert splits.test.kind == "unlabeled"


def test_hidden_labels_of_a_test_split_are_one_error(cache: Path) -> None:
    hub_cache(
        cache, "nyu-mll/glue", "rte", columns=["sentence1", "sentence2"], names=ENTAILMENT,
        splits={"train": [0, 1], "validation": [1, 0], "test": [-1, -1]},
    )  # fmt: skip
    with pytest.raises(DataError, match="split 'test' of task 'rte' has no labels, because the be"):
        load_splits(DataSettings(task="rte", eval_split="test"))
    with pytest.raises(DataError, match="split 'test' of task 'rte' has no labels, because the be"):
        load_task_dev(DataSettings(task="rte", source="nyu-mll/glue:rte@test"))


@pytest.mark.parametrize(
    ("task", "identifier", "config", "codes", "names"),
    [
        ("imdb", "stanfordnlp/imdb", "default", ("neg", "pos"), ("negative", "positive")),
        ("iflytek", "clue/clue", "iflytek", tuple(map(str, range(119))), ("打车", "地图导航")),
    ],
)
def test_class_names_of_the_hub_are_mapped_to_those_of_the_task(
    task: str, identifier: str, config: str, codes: tuple[str, ...], names: tuple[str, str],
    cache: Path,
) -> None:  # fmt: skip
    hub_cache(
        cache, identifier, config, columns=["sentence"], names=codes,
        splits={"train": [0, 1], "test": [1]},
    )  # fmt: skip
    train = load_splits(DataSettings(task=task)).train
    assert (train.labels, (train.label_names or ())[:2]) == ([0, 1], names)


def test_a_folder_is_found_by_the_tasks_name_in_any_writing(tmp_path: Path) -> None:
    (tmp_path / "STS-B").mkdir()
    (tmp_path / "tnews_public").mkdir()
    (tmp_path / "sst2_notes").mkdir()
    assert task_source("stsb", tmp_path) == str(tmp_path / "STS-B")
    assert task_source("tnews", str(tmp_path)) == str(tmp_path / "tnews_public")
    with pytest.raises(
        SettingError, match="No folder of task 'sst2' .* contains STS-B.*called sst2"
    ):
        task_source("sst2", tmp_path)
    (tmp_path / "stsb").mkdir()
    with pytest.raises(SettingError, match="Task 'stsb' could be STS-B and stsb under"):
        task_source("stsb", tmp_path)


def test_a_task_or_a_root_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="Unknown task 'sst'. Did you mean 'sst2'"):
        task_source("sst", tmp_path)
    with pytest.raises(SettingError, match="Unknown task 'demo'"):
        task_source("demo", None)
    with pytest.raises(SettingError, match="data root of task 'rte' must be a folder"):
        task_source("rte", tmp_path / "nowhere")


def test_a_folder_with_a_tab_separated_file_is_a_copy_of_a_task(tmp_path: Path) -> None:
    (tmp_path / "rte").mkdir()
    rows = ["text\ttext_pair\tlabel", "a\tb\t0", "c\td\t1", "e\tf\t0", "g\th\t1"]
    (tmp_path / "rte" / "train.tsv").write_text("\n".join(rows), encoding="utf-8")
    splits = load_splits(settings("rte", tmp_path))
    assert sorted([*splits.train.text, *splits.dev.text]) == ["a", "c", "e", "g"]
    assert splits.train.label_names == ENTAILMENT


def test_a_file_may_be_a_copy_of_a_task(tmp_path: Path) -> None:
    source = Path(plain_folder(tmp_path, None, mine=["positive", "negative"] * 10))
    splits = splits_of(str(source / "mine.jsonl"), task="sst2")
    assert len(splits.train) + len(splits.dev) == 20
    assert splits.dev.label_names == ("negative", "positive")
    assert "sst2: this copy is partial, train has 20 of 67,349 published rows." in splits.notices


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("cola", "cola"),
        ("nyu-mll/glue:mrpc", "mrpc"),
        ("/data/GLUE/STS-B", "stsb"),
        ("/data/sst2/train.jsonl.gz", "sst2"),
        ("data/ag_news@test", "ag_news"),
        ("stanfordnlp/imdb", "imdb"),
    ],
)
def test_a_task_is_recognised_by_the_name_of_its_source(source: str, name: str) -> None:
    task = task_of(source)
    assert task.name == name


@pytest.mark.parametrize("source", ["", "reviews.csv", "/home/rte/mine/reviews/train.csv"])
def test_an_unknown_source_is_no_task(source: str) -> None:
    assert task_of(source) is None


@pytest.mark.parametrize(
    ("source", "kind", "metric"),
    [
        ("cola", "classification", "mcc"),
        ("mrpc", "classification", "f1"),
        ("stsb", "regression", "pearson"),
        ("stsb", "classification", "accuracy"),
        ("reviews.csv", "classification", "accuracy"),
        ("reviews.csv", "regression", "pearson"),
    ],
)
def test_the_metric_follows_the_task_and_the_kind(source: str, kind, metric: str) -> None:  # type: ignore[no-untyped-def]
    assert default_metric(source, kind) == metric


def test_every_task_is_found_by_name_and_by_hub_id() -> None:
    for name, task in TASKS.items():
        assert task_of(name) is task
        if name != "paws":  # its configuration carries another name
            assert task_of(task.hub) is task


def test_a_task_has_metrics_of_its_kind_of_labels() -> None:
    wrong = [name for name, task in TASKS.items() if set(task.metrics) - {*metrics_of(task.kind)}]
    assert wrong == []
