"""Sources: files, folders, the local Hub cache and the demo corpus, and their messages."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pydantic
import pytest

from temper.data.columns import Columns
from temper.data.reading import read_as, splits_read_as
from temper.data.settings import DataSettings
from temper.data.sources import check_source, load_examples, load_splits
from temper.errors import DataError
from tests.data.task_files import json_lines, splits_of
from tests.messages import assert_messages


def rows(count: int, start: int = 0) -> list[dict[str, object]]:
    return [{"text": f"row {i}", "label": i % 2} for i in range(start, start + count)]


def folder(path: Path, **splits: list[dict[str, object]]) -> str:
    for name, content in splits.items():
        json_lines(path / f"{name}.jsonl", content)
    return str(path)


def test_a_folder_has_its_splits(tmp_path: Path) -> None:
    source = folder(tmp_path / "data", train=rows(8), dev=rows(4, 8), test=rows(2, 12))
    splits = splits_of(source)
    assert [len(split) for split in (splits.train, splits.dev, splits.test)] == [8, 4, 2]
    assert [split.name for split in (splits.train, splits.dev)] == ["train", "dev"]
    assert splits.train.source["split"] == "train"
    assert splits.train.source["path"].endswith("train.jsonl")
    assert len(splits.train.source["sha256"]) == 64
    assert splits.notices == ()


@pytest.mark.parametrize("name", ["dev", "validation", "validation_matched", "dev_matched", "test"])
def test_the_evaluation_split_is_found_by_its_usual_names(tmp_path: Path, name: str) -> None:
    splits = splits_of(folder(tmp_path / "data", train=rows(8), **{name: rows(4, 8)}))
    assert splits.dev.source["split"] == name
    assert len(splits.dev) == 4
    assert splits.test is None
    # Scores on a test split are called "dev", so a notice is needed.
    assert any("its test split is evaluated" in message for message in splits.notices) == (
        name == "test"
    )


def test_a_missing_dev_split_is_held_out_reproducibly_and_reported(tmp_path: Path) -> None:
    source = str(json_lines(tmp_path / "all.jsonl", rows(40)))
    settings = DataSettings(source=source, dev_fraction=0.2, seed=5)
    splits, again = load_splits(settings), load_splits(settings)
    assert splits.dev.rows == again.dev.rows
    assert (len(splits.train), len(splits.dev)) == (32, 8)
    assert sum(splits.dev.labels or []) == 4
    assert not splits.train.overlap(splits.dev)
    assert_messages(splits.notices, r"8 rows of train .*seed 5, fraction 0\.2")
    other = splits_of(source, dev_fraction=0.2, seed=6)
    assert other.dev.rows != splits.dev.rows


def test_dev_rows_are_held_out_from_train_on_request(tmp_path: Path) -> None:
    source = folder(tmp_path / "data", train=rows(40), dev=rows(10, 40), test=rows(10, 50))
    splits = load_splits(DataSettings(source=source, eval_split="carve", dev_fraction=0.2))
    alone = load_splits(DataSettings(source=source, eval_split="dev"))
    assert sorted([*splits.train.rows, *splits.dev.rows]) == sorted(alone.train.rows)
    assert len(splits.dev) == 8
    assert splits.test is None


def test_the_notice_on_a_missing_dev_split_names_a_setting_that_works(tmp_path: Path) -> None:
    source = folder(tmp_path / "data", train=rows(40), test=rows(10, 40))
    (notice,) = splits_of(source).notices
    (value,) = re.findall(r"--set data.eval_split=(\w+)", notice)
    splits = splits_of(source, eval_split=value, dev_fraction=0.2)
    assert (len(splits.train), len(splits.dev), splits.dev.source["split"]) == (32, 8, "train")


def test_an_unnamed_split_is_divided_unless_there_is_an_evaluation_split(tmp_path: Path) -> None:
    whole = splits_of(folder(tmp_path / "whole", all=rows(40), some=rows(10)))
    assert {split.source["split"] for split in (whole.train, whole.dev)} == {"all"}
    assert not whole.train.overlap(whole.dev)
    # Beside an evaluation split, whose rows they may hold, nobody knows what they are.
    with pytest.raises(DataError, match="Unknown split 'train'"):
        splits_of(folder(tmp_path / "both", all=rows(40), test=rows(10)))


def test_holding_rows_out_keeps_a_row_of_each_class_in_train(tmp_path: Path) -> None:
    rare = [*rows(9), {"text": "rare", "label": 2}]
    splits = splits_of(str(json_lines(tmp_path / "a.jsonl", rare)), dev_fraction=0.9)
    assert set(splits.train.labels or []) == {0, 1, 2}


def test_a_test_split_without_labels_is_not_evaluated(tmp_path: Path) -> None:
    unlabeled = [{"text": f"t {i}", "label": -1} for i in range(3)]
    splits = splits_of(folder(tmp_path / "data", train=rows(20), test=unlabeled))
    assert "held out as validation rows" in splits.notices[0]
    splits = splits_of(folder(tmp_path / "b", train=rows(8), dev=rows(4), test=unlabeled))
    assert splits.test.kind == "unlabeled"


def test_train_rows_in_evaluation_are_counted_and_dropped_on_request(tmp_path: Path) -> None:
    source = folder(tmp_path / "data", train=rows(10), dev=rows(5, 7), test=rows(2, 0))
    kept = splits_of(source)
    option = "--set data.drop_overlap=true"
    assert_messages(
        kept.notices, f"^3 train rows .*in dev .*{option}", f"^2 train rows .*in test .*{option}"
    )
    dropped = splits_of(source, drop_overlap=True)
    assert dropped.train.text == [f"row {i}" for i in range(2, 7)]
    assert list(dropped.train.numbers) == [3, 4, 5, 6, 7]
    assert list(dropped.dev.numbers) == [1, 2, 3, 4, 5]
    assert_messages(
        dropped.notices, "^3 rows dropped from train .*in dev$", "^2 rows .*from train .*in test$"
    )


def test_rows_are_drawn_and_too_large_a_number_is_reported(tmp_path: Path) -> None:
    source = folder(tmp_path / "data", train=rows(20), dev=rows(10, 20))
    splits = splits_of(source, rows=6, eval_rows=99)
    assert (len(splits.train), len(splits.dev)) == (6, 10)
    assert sum(splits.train.labels or []) == 3
    assert splits.notices == ("99 rows of dev requested, all 10 are used",)


def test_empty_texts_are_reported(tmp_path: Path) -> None:
    content = [*rows(4), {"text": " ", "label": 0}]
    splits = splits_of(folder(tmp_path / "d", train=content, dev=rows(2, 4)))
    assert_messages(splits.notices, "^1 row of train .*empty text")


def test_words_are_the_same_classes_in_every_split(tmp_path: Path) -> None:
    train = [{"text": str(i), "label": word} for i, word in enumerate(["c", "a", "b"])]
    dev = [{"text": f"d{i}", "label": word} for i, word in enumerate(["b", "c"])]
    splits = splits_of(folder(tmp_path / "data", train=train, dev=dev))
    assert splits.train.label_names == splits.dev.label_names == ("a", "b", "c")
    assert splits.dev.labels == [1, 2]


def test_dataset_json_names_integer_labels(tmp_path: Path) -> None:
    source = folder(tmp_path / "data", train=rows(8), dev=rows(4, 8))
    (tmp_path / "data/dataset.json").write_text('{"label_names": ["no", "yes"]}')
    splits = splits_of(source)
    assert splits.dev.label_names == ("no", "yes")
    single = load_examples(str(tmp_path / "data/dev.jsonl"))
    assert single.label_names == ("no", "yes")


def test_a_regression_is_one_in_every_split(tmp_path: Path) -> None:
    train = [{"text": str(i), "label": i / 3} for i in range(6)]
    dev = [{"text": f"d{i}", "label": i} for i in range(2)]
    splits = splits_of(folder(tmp_path / "data", train=train, dev=dev))
    assert (splits.train.kind, splits.dev.kind) == ("regression", "regression")
    assert splits.dev.labels == [0.0, 1.0]
    # Integers are targets where the settings say so.
    splits = splits_of(folder(tmp_path / "b", train=rows(8), dev=dev), kind="regression")
    assert (splits.train.kind, splits.dev.kind) == ("regression", "regression")


PAIRS = [
    (["sentence1", "sentence2"], "sentence1", "sentence2"),
    (["premise", "hypothesis"], "premise", "hypothesis"),
    (["question", "sentence"], "question", "sentence"),
    (["Text", "idx"], "Text", None),
    (["title", "content"], "content", None),
]


@pytest.mark.parametrize(("names", "text", "pair"), PAIRS)
def test_columns_are_found_by_their_usual_names(
    tmp_path: Path, names: list[str], text: str, pair: str | None
) -> None:
    content = [{**{name: f"{name} {i}" for name in names}, "Label": i} for i in range(2)]
    examples = load_examples(str(json_lines(tmp_path / "a.jsonl", content)))
    assert examples.text == [f"{text} 0", f"{text} 1"]
    assert examples.text_pair == (None if pair is None else [f"{pair} 0", f"{pair} 1"])
    assert examples.labels == [0, 1]


CANDIDATES = [
    (["text", "sentiment", "score"], {}, {"label": ["sentiment"]}, "--label-column"),
    (["question", "answer", "text", "label"], {}, {"text": ["text"]}, "--text-column"),
    (["sentence", "Content", "label"], {}, {"text": ["Content"]}, "data.text_pair_column"),
    (["text", "Text", "label"], {}, {"text": ["Text"]}, "--text-column"),
    (["question", "sentence", "label"], {}, {}, ""),
    (["text", "sentiment", "score"], {"label_column": "score"}, {}, ""),
    (["question", "answer", "text", "label"], {"text_column": "text"}, {}, ""),
]


@pytest.mark.parametrize(("names", "given", "others", "option"), CANDIDATES)
def test_a_guessed_column_is_stored_and_reported_with_its_option(
    tmp_path: Path,
    names: list[str],
    given: dict[str, str],
    others: dict[str, list[str]],
    option: str,
) -> None:
    labels = {"label": ["a", "b"], "sentiment": ["neg", "pos"], "score": [0.5, 0.25]}
    content = [{name: labels.get(name, ["x", "y"])[i % 2] for name in names} for i in range(20)]
    splits = splits_of(str(json_lines(tmp_path / "a.jsonl", content)), **given)
    assert splits.train.source.get("other_columns", {}) == others
    messages = [notice for notice in splits.notices if "would fit too" in notice]
    assert len(messages) == len(others)
    for notice, columns in zip(messages, others.values(), strict=True):
        assert option in notice
        assert all(repr(name) in notice for name in columns)


def test_the_columns_and_the_kind_are_reported(tmp_path: Path) -> None:
    content = [{"review": f"r {i}", "stars": i % 3 + 1.0, "group": "g"} for i in range(30)]
    source = str(json_lines(tmp_path / "a.jsonl", content))
    splits = splits_of(source, label_column="stars")
    assert splits.train.source["columns"] == {"text": "review", "label": "stars", "group": "group"}
    (message,) = splits_read_as(splits)
    assert (
        "text from 'review', label from 'stars' (regression, 1 to 3), group from 'group'" in message
    )
    splits = splits_of(source, label_column="stars", kind="classification")
    (message,) = splits_read_as(splits)
    assert "(classification, 3 classes: 1, 2, 3)" in message
    assert splits_read_as(splits_of("demo")) == []
    codes = load_examples(source, columns=Columns(label="stars"), kind="classification")
    assert "3 classes: 1, 2, 3" in read_as(codes)


def test_other_splits_are_read_from_the_columns_of_train(tmp_path: Path) -> None:
    row = {"question": "q", "answer": "a", "text": "t"}
    train = [{**row, "sentiment": "neg"}, {**row, "sentiment": "pos"}]
    dev = [{"text": "t", "question": "q", "answer": "a", "score": 0.5, "sentiment": "pos"}]
    splits = splits_of(folder(tmp_path / "data", train=train, dev=dev))
    assert (splits.dev.text, splits.dev.text_pair, splits.dev.labels) == (["q"], ["a"], [1])
    # The choice is reported once.
    assert sum("would fit too" in notice for notice in splits.notices) == 1


@pytest.mark.parametrize("labels", [[1, 2, 3, 4, 5], [0, 4], [-1, 0, 1], [1.0, 2.0]])
@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_whole_numbers_are_the_same_classes_in_every_split_and_format(
    tmp_path: Path, labels: list[int] | list[float], ending: str
) -> None:
    def write(name: str, values: list[object]) -> None:
        texts = [f"{name} {i}" for i in range(len(values))]
        if ending == "parquet":
            pq.write_table(pa.table({"text": texts, "label": values}), tmp_path / f"{name}.parquet")
        elif ending == "jsonl":
            lines = [{"text": a, "label": b} for a, b in zip(texts, values, strict=True)]
            json_lines(tmp_path / f"{name}.jsonl", lines)
        else:
            lines = [f"{a},{b}" for a, b in zip(texts, values, strict=True)]
            (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *lines]))

    write("train", [*labels, *labels])
    # A split may hold some of the classes, and write them as the other kind of number.
    write("dev", [type(1.5 if isinstance(labels[0], int) else 1)(labels[-1])])
    splits = splits_of(tmp_path, kind="classification")
    names = tuple(str(int(label)) for label in labels)
    assert splits.train.label_names == splits.dev.label_names == names
    assert splits.dev.labels == [len(names) - 1]


def test_whole_numbers_are_read_as_classes_and_this_is_reported(tmp_path: Path) -> None:
    content = [{"text": f"t {i}", "label": i % 2 + 1} for i in range(20)]
    source = str(json_lines(tmp_path / "a.jsonl", content))
    splits = splits_of(source)
    assert (splits.train.label_names, splits.train.kind) == (("1", "2"), "classification")
    assert any("data.kind=regression" in notice for notice in splits.notices)
    splits = splits_of(source, kind="classification")
    assert not any("data.kind" in notice for notice in splits.notices)


def test_an_unknown_class_in_an_unread_split_is_ignored(tmp_path: Path) -> None:
    odd = [{"text": "odd", "label": 7}, {"text": "row 1", "label": None}]
    splits = splits_of(folder(tmp_path / "data", train=rows(8), dev=rows(4, 8), test=odd))
    assert (splits.test.text, splits.test.kind) == (["odd", "row 1"], "unlabeled")
    # Its texts are still compared with those that are trained on.
    assert "1 train row is also in" in " ".join(splits.notices)
    source = folder(tmp_path / "b", train=rows(8), dev=odd, test=rows(4, 8))
    assert len(splits_of(source, eval_split="test").dev) == 4


def test_rows_with_an_untrained_label_are_skipped_on_request(tmp_path: Path) -> None:
    words = [{"text": f"t {i}", "label": word} for i, word in enumerate(["good", "bad"] * 4)]
    dev = [{"text": "a", "label": "Bad"}, {"text": "b", "label": "ugly"}]
    source = folder(tmp_path / "data", train=words, dev=dev)
    with pytest.raises(
        DataError, match=r"Unknown label 'ugly'.*dev.jsonl, row 2.*data.skip_bad_rows"
    ):
        splits_of(source)
    splits = splits_of(source, skip_bad_rows=True)
    assert (splits.dev.text, splits.dev.labels) == (["a"], [0])
    assert "1 bad row is skipped: row 2 (unknown label 'ugly')" in " ".join(splits.notices)
    source = folder(tmp_path / "b", train=rows(8), dev=[*rows(2), {"text": "c", "label": 2}])
    assert splits_of(source, skip_bad_rows=True).dev.labels == [0, 1]
    # No row is left: this is another fault.
    source = folder(tmp_path / "c", train=rows(8), dev=[{"text": "c", "label": 2}])
    with pytest.raises(DataError, match="Unknown label '2'"):
        splits_of(source, skip_bad_rows=True)


def test_indices_counted_from_1_are_so_in_every_split(tmp_path: Path) -> None:
    train = [{"text": f"t {i}", "label": i % 2 + 1} for i in range(8)]
    source = folder(tmp_path / "data", train=train, dev=[{"text": "d", "label": 1}])
    (tmp_path / "data/dataset.json").write_text('{"label_names": ["no", "yes"]}')
    splits = splits_of(source)
    assert (splits.train.labels[:2], splits.dev.labels) == ([0, 1], [0])
    assert splits.dev.label_names == ("no", "yes")


def test_columns_can_be_named(tmp_path: Path) -> None:
    content = [{"text": "no", "body text": "a", "also": "b", "stars": 1, "label": 9}]
    path = str(json_lines(tmp_path / "a.jsonl", content))
    examples = load_examples(path, columns=Columns("body text", "also", "stars"))
    assert (examples.text, examples.text_pair, examples.labels) == (["a"], ["b"], [1])


BAD_FOLDERS = [
    ({"train": rows(2)}, {}, "has 2 rows in 2 classes, .*dev split"),
    ({"train": rows(4), "dev": rows(6)}, {"drop_overlap": True}, "Every train row is also"),
    ({"train": rows(9), "dev": rows(2)}, {"rows": 1}, "rows must be >= 2, one for each class"),
    (
        {"train": [{"text": "a", "label": 1}] * 9, "dev": rows(2)},
        {},
        "at least two classes, got on",
    ),
    (
        {"train": [{"text": "a", "label": i} for i in (1, 3)], "dev": rows(2)},
        {},
        "1, 3.*data.kind=cl",
    ),
    (
        {"train": rows(4), "dev": [*rows(2), {"text": "a", "label": 2}]},
        {},
        "Unknown label '2'.*dev.jsonl, row 3.*data.skip_bad_rows",
    ),
    ({"train": rows(4), "dev": [{"text": "a", "label": "no"}]}, {}, "Unknown label 'no'.*row 1"),
    ({"dev": rows(4)}, {}, "Unknown split 'train'.*Known: dev"),
    ({"train": rows(4), "dev": rows(2)}, {"eval_split": "tset"}, "Unknown split 'tset'"),
    ({"train": [{"text": "a"}], "dev": rows(2)}, {}, "split 'train' has no labels"),
    (
        {"train": [{"text": "a", "label": ""}, {"text": "b", "label": ""}]},
        {},
        "no labels to train on: each cell of column 'label' is empty or -1. Fill in the labels",
    ),
    (
        {"train": [{"text": "a", "stars": "good"}], "dev": rows(2)},
        {},
        r"columns are text, stars: name the label column with --label-column \(`label_column`\)",
    ),
    ({"train": rows(4), "dev": [{"text": "a"}]}, {}, "split 'dev' has no labels"),
    ({"train": [{"text": None, "label": 0}]}, {}, r"line 1: 'text' must be a string, got nothing"),
    ({"train": [*rows(1), {"text": 7, "label": 0}]}, {}, r"line 2: 'text' must be a string, got 7"),
    (
        {"train": [{"text": "\ud800", "label": 0}]},
        {},
        "line 1: 'text' must be a string, got half of a s",
    ),
    ({"train": [{"idx": "a", "label": 0}]}, {}, "no text column found among 'idx', 'label'"),
    ({"train": rows(4)}, {"text_column": "txet"}, "Unknown column 'txet'. Did you mean 'text'"),
    ({"train": rows(4)}, {"label_column": "text", "text_column": "text"}, "must be different col"),
    ({"train": rows(4)}, {"config": "x"}, "Only Hub datasets have configurations.* Leave 'x' out"),
    (
        {"train": rows(4), "dev": [{"text": "a", "text_pair": "b", "label": 0}]},
        {},
        "split 'dev' must have one text .*split 'train'",
    ),
    (
        {
            "train": [{"text": str(i), "label": word} for i, word in enumerate(["good", "bad"])],
            "dev": [{"text": "x", "label": "ugly"}],
        },
        {},
        "Unknown label 'ugly'",
    ),
]


@pytest.mark.parametrize(("content", "settings", "message"), BAD_FOLDERS)
def test_bad_data_raises_one_clear_error(
    tmp_path: Path,
    content: dict[str, list[dict[str, object]]],
    settings: dict[str, str],
    message: str,
) -> None:
    source = folder(tmp_path / "data", **content)
    with pytest.raises(DataError, match=message):
        splits_of(source, **settings)


def test_a_folder_without_data_or_with_one_split_in_two_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no data"):
        splits_of(tmp_path)
    source = folder(tmp_path / "data", train=rows(4))
    (tmp_path / "data/train.csv").write_text("text,label\na,0\n")
    with pytest.raises(DataError, match=r"has split 'train' twice: train.csv and train.jsonl"):
        splits_of(source)


def test_the_folder_of_a_model_is_no_data(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(DataError, match="folder of a model"):
        splits_of(tmp_path)


@pytest.mark.parametrize("content", ["{", '{"label_names": ["a", "a"]}', '{"label_names": [1]}'])
def test_damaged_label_names_are_an_error(tmp_path: Path, content: str) -> None:
    source = folder(tmp_path / "data", train=rows(4))
    (tmp_path / "data/dataset.json").write_text(content)
    with pytest.raises(DataError, match=r"dataset.json: (not valid JSON|label_names must be)"):
        splits_of(source)


@pytest.mark.parametrize(
    "source", ["./no", "no.csv", "/none", "a b", "a/b/c", "", "~none/x", "x" * 300 + "/y/z", "a\0"]
)
def test_an_unknown_source_raises_an_error(source: str) -> None:
    with pytest.raises(DataError, match="No such file or folder"):
        load_examples(source)


def test_a_set_of_a_folder_is_its_test_before_its_dev_before_its_train(tmp_path: Path) -> None:
    full = folder(tmp_path / "full", train=rows(3), dev=rows(4), test=rows(5))
    some = folder(tmp_path / "some", train=rows(3), validation=rows(4))
    last = folder(tmp_path / "last", train=rows(3))
    assert [len(load_examples(path)) for path in (full, some, last)] == [5, 4, 3]
    assert load_examples(full).name == "full"


def test_a_split_can_be_requested_in_two_ways(tmp_path: Path) -> None:
    source = folder(tmp_path / "data", all=rows(3), orig_test=rows(4))
    with pytest.raises(DataError, match=r"none of the splits test, dev, train; it has all, orig_"):
        load_examples(source)
    assert len(load_examples(f"{source}@all")) == len(load_examples(source, split="all")) == 3
    with pytest.raises(DataError, match="names split 'all', but split 'orig_test' was given too"):
        load_examples(f"{source}@all", split="orig_test")


def test_a_path_with_the_signs_of_a_split_is_still_a_path(tmp_path: Path) -> None:
    source = folder(tmp_path / "a:b@test", train=rows(3))
    assert len(load_examples(source)) == 3


def test_a_set_is_matched_to_the_labels_of_the_model(tmp_path: Path) -> None:
    content = [{"text": "a", "label": "Positive"}, {"text": "b", "label": "Negative"}]
    path = str(json_lines(tmp_path / "a.jsonl", content))
    assert load_examples(path).map_labels(["negative", "positive"]).labels == [1, 0]
    with pytest.raises(DataError, match="Unknown label 'Negative'"):
        load_examples(path).map_labels(["bad", "positive"])


def test_labels_are_not_read_if_none_are_needed(tmp_path: Path) -> None:
    content: list[dict[str, object]] = [{"text": "a", "label": "x"}, {"text": "b", "label": 3.5}]
    path = str(json_lines(tmp_path / "a.jsonl", content))
    examples = load_examples(path, labeled=False)
    assert (examples.kind, examples.labels, len(examples)) == ("unlabeled", None, 2)
    with pytest.raises(DataError, match="are not read. Leave `label_column`"):
        load_examples(path, labeled=False, columns=Columns(label="label"))


def test_the_demo_sets_are_sources() -> None:
    assert load_examples("demo").source["split"] == "dev"
    assert load_examples("demo@train").source["split"] == "train"
    assert load_examples("demo:shift").kind == "classification"
    assert load_examples("demo:anomaly", labeled=False).kind == "unlabeled"


def test_an_unknown_demo_set_is_named() -> None:
    with pytest.raises(DataError, match="Unknown demo set 'shfit'. Did you mean 'shift'"):
        load_examples("demo:shfit")
    with pytest.raises(DataError, match="demo:shift has no splits. Leave split 'dev'"):
        load_examples("demo:shift@dev")
    with pytest.raises(DataError, match="Unknown split 'test'"):
        load_examples("demo@test")


def test_labels_that_are_missing_or_targets_cannot_be_matched(tmp_path: Path) -> None:
    path = str(json_lines(tmp_path / "a.jsonl", [{"text": "a", "label": 0.5}]))
    with pytest.raises(DataError, match=r"must have class labels .*\['negative', 'positive'\]"):
        load_examples(path).map_labels(["negative", "positive"])
    with pytest.raises(DataError, match="'demo:anomaly' has no labels"):
        load_examples("demo:anomaly")


def test_settings_that_cannot_be_followed_are_errors() -> None:
    with pytest.raises(DataError, match="labels of 'demo' are classes.*Leave `kind` out"):
        load_examples("demo", kind="regression")
    for settings in ({"text_column": "text"}, {"group_column": "genre"}):
        with pytest.raises(DataError, match="demo corpus has fixed columns"):
            splits_of("demo", **settings)
    with pytest.raises(DataError, match="demo:shift is for evaluation only"):
        splits_of("demo:shift")
    with pytest.raises(DataError, match="Use 'demo' with train_split='dev'"):
        splits_of("demo@dev")
    with pytest.raises(pydantic.ValidationError, match="eval_split must differ from train_split"):
        DataSettings(source="demo", eval_split="train")


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_a_huge_label_raises_an_error_at_once(tmp_path: Path, ending: str) -> None:
    huge = 2**64 - 1 if ending == "parquet" else 10**9
    labels, path = [0, 1, 2, huge, 1, 0], tmp_path / f"rows.{ending}"
    texts = [f"text {number}" for number in range(len(labels))]
    if ending == "parquet":
        columns = {"text": texts, "label": pa.array(labels, pa.uint64())}
        pq.write_table(pa.table(columns), path)
    elif ending == "jsonl":
        rows = [{"text": a, "label": b} for a, b in zip(texts, labels, strict=True)]
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    else:
        sign = "," if ending == "csv" else "\t"
        lines = [f"{a}{sign}{b}" for a, b in zip(texts, labels, strict=True)]
        path.write_text("\n".join([f"text{sign}label", *lines]), encoding="utf-8")
    with pytest.raises(
        DataError, match=rf"4 different whole numbers .*{huge}\).*data.kind=classif"
    ):
        load_splits(DataSettings(source=str(path)))


def test_a_pipe_raises_an_error_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "rows.csv"
    os.mkfifo(pipe)
    with pytest.raises(DataError, match=r"rows\.csv .*neither a file"):
        check_source(str(pipe))
    with pytest.raises(DataError, match=r"rows\.csv .*neither a file"):
        load_splits(DataSettings(source=str(pipe)))
