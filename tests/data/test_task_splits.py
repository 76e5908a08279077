"""Train and dev rows of a task's copy, and the messages for missing splits."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pydantic
import pytest

from temper.data.settings import DataSettings
from temper.data.sources import load_splits, load_task_dev
from temper.data.tasks.registry import TASKS, task_source
from temper.errors import DataError
from tests.data.task_files import json_lines, mnli_folder, plain_folder, splits_of
from tests.messages import assert_messages

NLI = ("entailment", "neutral", "contradiction")
SENTIMENT = ("negative", "positive")
# Sizes of the copies in the shared folder: train, dev.
COPIES = {
    "sst2": (67349, 872),
    "cola": (8551, 1043),
    "mrpc": (4076, 1725),
    "stsb": (5749, 1500),
    "mnli": (9888, 7238),
    "qqp": (8000, 2000),
    "qnli": (4463, 1000),
    "rte": (2490, 277),
    "wnli": (635, 71),
    "imdb": (10000, 5000),
    "ag_news": (16122, 7600),
    "tnews": (53360, 10000),
    "iflytek": (3024, 1373),
}


def mnli(
    root: Path, *, splits: tuple[str, ...] = ("train", "dev_matched", "dev_mismatched")
) -> str:
    return task_source("mnli", mnli_folder(root, NLI, splits=splits))


def pairs(folder: Path, **splits: int) -> str:
    """Write splits of that many rows, no text twice, labels by turns."""
    for split, count in splits.items():
        rows = [{"text": f"{split} {n}", "text_pair": f"{n}", "label": n % 2} for n in range(count)]
        json_lines(folder / f"{split}.jsonl", rows)
    return str(folder)


def test_mnlis_dev_is_both_of_its_dev_sets_and_they_are_groups(tmp_path: Path) -> None:
    settings = DataSettings(task="mnli", source=mnli(tmp_path))
    for dev in (load_splits(settings).dev, load_task_dev(settings)):
        assert dev.name == "dev"
        assert dev.group == ["matched"] * 3 + ["mismatched"] * 3
        assert (dev.labels, dev.label_names) == ([0, 1, 2] * 2, NLI)
        assert dev.text == [f"MNLI {n}" for n in range(3, 9)]
        assert dev.source["split"] == "dev_matched + dev_mismatched"
        assert [Path(each["path"]).name for each in dev.source["files"]] == [
            "dev_matched.jsonl",
            "dev_mismatched.jsonl",
        ]


@pytest.mark.parametrize("split", ["dev_mismatched", "validation_mismatched"])
def test_one_of_mnlis_dev_sets_can_be_named(tmp_path: Path, split: str) -> None:
    settings = DataSettings(task="mnli", source=mnli(tmp_path), eval_split=split)
    for dev in (load_splits(settings).dev, load_task_dev(settings)):
        assert dev.text == [f"MNLI {n}" for n in range(6, 9)]
        assert dev.group is None
        assert not any("alone" in message for message in dev.notices)


def test_a_copy_of_mnli_with_one_dev_set_reports_which_one(tmp_path: Path) -> None:
    source = mnli(tmp_path, splits=("train", "dev_matched"))
    dev = splits_of(source, task="mnli").dev
    assert (len(dev), dev.group) == (3, None)
    assert "mnli: dev_mismatched is missing, so dev is only dev_matched." in dev.notices


def test_groups_of_a_named_column_are_kept(tmp_path: Path) -> None:
    for split in ("train", "dev_matched", "dev_mismatched"):
        rows = [
            {"text": f"{split} {n}", "text_pair": "b", "label": n, "genre": f"{split[-4:]}{n}"}
            for n in range(3)
        ]
        json_lines(tmp_path / f"{split}.jsonl", rows)
    settings = DataSettings(task="mnli", source=str(tmp_path), group_column="genre")
    assert load_splits(settings).dev.group == [f"ched{n}" for n in range(3)] * 2


def test_dev_sets_are_joined_without_skipped_rows(tmp_path: Path) -> None:
    for split in ("train", "dev_matched", "dev_mismatched"):
        rows = [{"text": f"{split} {n}", "text_pair": "b", "label": n} for n in range(3)]
        json_lines(
            tmp_path / f"{split}.jsonl", [*rows, {"text": None, "text_pair": "b", "label": 0}]
        )
    dev = splits_of(tmp_path, task="mnli", skip_bad_rows=True).dev
    assert (len(dev), dev.labels, dev.numbers) == (6, [0, 1, 2] * 2, range(1, 7))


def test_a_dev_set_of_mnli_without_labels_is_an_error(tmp_path: Path) -> None:
    for split, labels in (("train", [0, 1]), ("dev_matched", [1]), ("dev_mismatched", [-1])):
        rows = [{"text": split, "text_pair": f"{n}", "label": n} for n in labels]
        json_lines(tmp_path / f"{split}.jsonl", rows)
    with pytest.raises(DataError, match="split 'dev_mismatched' of task 'mnli' has no labels"):
        splits_of(tmp_path, task="mnli")


def test_a_partial_copy_reports_expected_and_actual_sizes(tmp_path: Path) -> None:
    source = plain_folder(tmp_path, SENTIMENT, train=[0, 1, 1], dev=[1], test=[0, 1])
    splits = splits_of(source, task="sst2")
    assert_messages(
        splits.notices, "^sst2: .*train has 3 of 67,349 ", "^sst2: .*dev has 1 of 872 published"
    )
    assert splits.dev.notices == splits.notices[1:]


def test_a_complete_copy_reports_no_size(tmp_path: Path) -> None:
    rows = TASKS["wnli"].rows
    source = pairs(tmp_path, train=rows["train"], dev=rows["dev"])
    notices = splits_of(source, task="wnli").notices
    assert [notice[:37] for notice in notices] == [
        "The labels of set 'train' have no nam",
        "The labels of set 'dev' have no names",
    ]


def test_a_copy_of_mrpc_with_dev_rows_in_train_is_reported(tmp_path: Path) -> None:
    source = pairs(tmp_path, train=4076, test=1725)
    splits = splits_of(source, task="mrpc")
    assert splits.dev.source["split"] == "test"
    (message,) = (text for text in splits.notices if "3,668" in text)
    assert re.search(r"^mrpc: train has 4,076 rows.* rows of the dev split are among them", message)


def test_a_task_without_a_dev_split_is_evaluated_on_test_or_on_rows_carved_from_train(
    tmp_path: Path,
) -> None:
    source = plain_folder(tmp_path, SENTIMENT, train=[0, 1] * 10, test=[0, 1] * 3)
    splits = splits_of(source, task="imdb")
    assert (len(splits.train), splits.dev.source["split"], splits.test) == (20, "test", None)
    assert any(
        "data.eval_split=carve holds out validation rows" in message for message in splits.notices
    )
    carved = splits_of(source, task="imdb", eval_split="dev", dev_fraction=0.2)
    assert (len(carved.train), len(carved.dev), carved.dev.source["split"]) == (16, 4, "train")
    assert any("4 rows of train are" in message for message in carved.notices)
    # Evaluating alone carves nothing: the rest of train is not known to be apart.
    with pytest.raises(DataError, match="no split to evaluate task 'imdb' on: expected dev or tes"):
        load_task_dev(DataSettings(task="imdb", source=source, eval_split="dev"))
    assert len(load_task_dev(DataSettings(task="imdb", source=source))) == 6


def test_a_test_split_without_labels_is_not_evaluated_in_place_of_dev(tmp_path: Path) -> None:
    source = plain_folder(tmp_path, SENTIMENT, train=[0, 1] * 10, test=[-1] * 6)
    splits = splits_of(source, task="imdb")
    assert splits.dev.source["split"] == "train"


def test_a_copy_with_a_split_evaluation_set_never_evaluates_training_rows(tmp_path: Path) -> None:
    source = pairs(tmp_path, dev=12, resplit_train=8, resplit_test=4)
    settings = DataSettings(task="qnli", source=source)
    splits = load_splits(settings)
    # The whole dev set holds the rows of both parts.
    assert (len(splits.train), splits.dev.source["split"]) == (8, "resplit_test")
    (message,) = (text for text in splits.notices if text.startswith("qnli: resplit_test (4 rows)"))
    assert re.search(r"replaces dev \(5,463 rows .*not comparable", message)
    # A model that was trained elsewhere is evaluated on all of it.
    assert len(load_task_dev(settings)) == 12


def test_labels_of_a_copy_in_another_order_are_matched_by_name(tmp_path: Path) -> None:
    source = plain_folder(tmp_path, ("Positive", "Negative"), train=[0, 1], dev=[0, 0])
    splits = splits_of(source, task="sst2")
    assert (splits.train.labels, splits.train.label_names) == ([1, 0], SENTIMENT)
    assert (splits.dev.labels, splits.dev.label_names) == ([1, 1], SENTIMENT)


BOTH = {"train": [0, 1], "dev": [0, 0]}
BAD_COPIES = [
    ("sst2", ("bad", "good"), BOTH, "split 'train': .*task 'sst2'.*Unknown label"),
    ("rte", None, BOTH, "two texts .*task 'rte' .*got one"),
    (
        "sst2",
        SENTIMENT,
        {"dev": [0, 1]},
        "no rows to train task 'sst2' on: expected a split called",
    ),
    ("sst2", SENTIMENT, {**BOTH, "train": [-1, -1]}, "'train' of task 'sst2' has no labels to tr"),
]


@pytest.mark.parametrize(("task", "names", "splits", "message"), BAD_COPIES)
def test_a_copy_that_is_not_the_tasks_is_an_error(
    task: str, names: tuple[str, ...] | None, splits: dict[str, list[int]], message: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    with pytest.raises(DataError, match=message):
        splits_of(plain_folder(tmp_path, names, **splits), task=task)


def test_a_copy_of_pairs_is_no_task_of_single_texts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="one text .*task 'sst2' .*got two"):
        splits_of(pairs(tmp_path, train=4, dev=2), task="sst2")


def test_named_splits_are_used(tmp_path: Path) -> None:
    source = plain_folder(tmp_path, SENTIMENT, train=[0, 1], dev=[0], more=[1, 0, 1], other=[1, 1])
    settings = DataSettings(task="sst2", source=source, train_split="more", eval_split="other")
    splits = load_splits(settings)
    assert (splits.train.text[0], splits.dev.text[0]) == ("more 0", "other 0")
    with pytest.raises(DataError, match="Unknown split 'none'"):
        load_splits(settings.model_copy(update={"eval_split": "none"}))


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"task": "sst"}, "Unknown task 'sst'"),
        ({"task": "hans"}, "Unknown task 'hans'"),
        (
            {"task": "stsb", "kind": "classification"},
            "task 'stsb' is a regression, but kind is 'cl",
        ),
        (
            {"task": "sst2", "source": "demo"},
            "source 'demo' is generated .*task 'sst2'",
        ),
        ({}, "source\n  Field required"),
    ],
)
def test_invalid_settings_of_a_task_raise_an_error(given: dict[str, str], match: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=match) as caught:
        DataSettings.model_validate(given)
    assert caught.value.error_count() == 1


def test_settings_of_a_task_are_the_same_once_they_are_written_and_read() -> None:
    settings = DataSettings(task="mnli")
    assert settings.source == "nyu-mll/glue:mnli"
    assert DataSettings.model_validate(settings.model_dump(mode="json")) == settings


# A plain one, a pair, a regression and one of many classes; the others are large.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=() if name in ("cola", "rte", "stsb", "iflytek", "mnli") else pytest.mark.slow,
        )
        for name in COPIES
    ],
)
def test_a_real_copy_matches_the_task_and_reports_missing_splits(name: str, data_dir: Path) -> None:
    task = TASKS[name]
    splits = splits_of(task_source(name, data_dir), task=name)
    assert (len(splits.train), len(splits.dev)) == COPIES[name]
    assert (splits.train.kind, splits.train.label_names) == (task.kind, task.labels)
    assert (splits.train.text_pair is not None) is task.pair
    if task.labels is not None:
        # Every class of the task has rows to learn from.
        assert len(Counter(splits.train.labels)) == len(task.labels)
    whole = len(splits.train) == task.rows["train"] and len(splits.dev) == task.rows.get("dev")
    assert whole is not any(message.startswith(f"{name}: ") for message in splits.notices)
