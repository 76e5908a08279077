"""Known tasks in the layouts of GLUE, CLUE and the Hub: the same rows and splits from each."""

from __future__ import annotations

from pathlib import Path

import datasets
import pytest

from temper.data.settings import DataSettings
from temper.data.sources import load_splits, load_task_dev
from temper.data.tasks.layouts import task_source
from temper.data.tasks.registry import TASKS, default_metric, task_of
from temper.errors import DataError, SettingError
from tests.data.task_files import (
    glue,
    hub_cache,
    json_lines,
    plain_folder,
    splits_of,
    tabs,
)

BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    return tmp_path


def settings(task: str, root: Path, **more: object) -> DataSettings:
    return DataSettings(task=task, source=task_source(task, root), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("task", "folder", "written", "names", "labels"),
    [
        ("sst2", "SST-2", BINARY, ("negative", "positive"), [0, 1]),
        ("mrpc", "MRPC", BINARY, ("not_equivalent", "equivalent"), [0, 1]),
        ("qqp", "QQP", BINARY, ("not_duplicate", "duplicate"), [0, 1]),
        ("qnli", "QNLI", ENTAILMENT, ENTAILMENT, [0, 1]),
        ("rte", "RTE", ("not_entailment", "entailment"), ENTAILMENT, [1, 0]),
        ("wnli", "WNLI", BINARY, ("not_entailment", "entailment"), [0, 1]),
    ],
)
def test_a_folder_of_glue_gives_texts_and_labels_whatever_its_header_calls_them(
    task: str, folder: str, written: tuple[str, ...], names: tuple[str, ...], labels: list[int],
    tmp_path: Path,
) -> None:  # fmt: skip
    splits = load_splits(settings(task, glue(tmp_path, folder, written, splits=["train", "dev"])))
    # A quote is a character: read as CSV does, the first one would swallow the line.
    assert splits.train.text == [f'{folder} "0', f'{folder} "1']
    assert splits.dev.text == [f'{folder} "2', f'{folder} "3']
    pair = None if task == "sst2" else ["second 0", "second 1"]
    assert splits.train.text_pair == pair
    assert (splits.train.labels, splits.train.label_names) == (labels, names)
    assert splits.test.kind == "unlabelled"


def test_stsb_of_glue_is_a_regression(tmp_path: Path) -> None:
    root = glue(tmp_path, "STS-B", ("5.000", "0.000"), splits=["train", "dev"])
    splits = load_splits(settings("stsb", root))
    assert (splits.train.kind, splits.train.labels) == ("regression", [5.0, 0.0])
    assert (splits.train.text, splits.train.text_pair) == (
        ['STS-B "0', 'STS-B "1'],
        ["second 0", "second 1"],
    )


def test_cola_of_glue_has_no_header_but_its_test_file_has(tmp_path: Path) -> None:
    tabs(tmp_path / "CoLA" / "train.tsv", [["gj04", "1", "", "It is."], ["gj04", "0", "*", "Is."]])
    tabs(tmp_path / "CoLA" / "dev.tsv", [["cj99", "0", "*", "Was it was."]])
    tabs(tmp_path / "CoLA" / "test.tsv", [["index", "sentence"], ["0", "Who knows?"]])
    splits = load_splits(settings("cola", tmp_path))
    assert (splits.train.text, splits.train.labels) == (["It is.", "Is."], [1, 0])
    assert splits.train.label_names == ("unacceptable", "acceptable")
    assert (splits.dev.text, splits.dev.labels) == (["Was it was."], [0])
    assert splits.test.text == ["Who knows?"]


def test_a_row_of_qqp_that_a_line_break_tears_is_left_out_and_counted(tmp_path: Path) -> None:
    root = glue(tmp_path, "QQP", BINARY, splits=["train", "dev"])
    path = root / "QQP" / "train.tsv"
    path.write_text(path.read_text() + "9\t9\t9\thow is\nit done?\twhy?\t1\n")
    splits = load_splits(settings("qqp", root))
    assert len(splits.train) == 2
    assert any(f"2 lines of {path} (the first is line 4)" in said for said in splits.notices)


def test_a_torn_row_of_another_task_is_an_error(tmp_path: Path) -> None:
    root = glue(tmp_path, "RTE", ENTAILMENT, splits=["train", "dev"])
    path = root / "RTE" / "train.tsv"
    path.write_text(path.read_text() + "9\thalf\n")
    with pytest.raises(DataError, match=r"train\.tsv, line 4: expected at least 4 fields.*got 2"):
        load_splits(settings("rte", root))


def test_a_test_file_of_glue_without_its_columns_is_an_error(tmp_path: Path) -> None:
    root = glue(tmp_path, "RTE", ENTAILMENT, splits=["train", "dev"])
    tabs(root / "RTE" / "test.tsv", [["index", "sentence1"], ["0", "alone"]])
    with pytest.raises(DataError, match="expected 'sentence2' in GLUE's header for rte, got 'inde"):
        load_splits(settings("rte", root))


def msr(folder: Path, *, ids: list[tuple[str, str]] | None) -> Path:
    """Write MRPC's original files, and the list of GLUE's dev rows."""
    header = ["\ufeffQuality", "#1 ID", "#2 ID", "#1 String", "#2 String"]
    rows = [[str(n % 2), f"{n}", f"{n}0", f"one {n}", f'two "{n}'] for n in range(6)]
    tabs(folder / "MRPC" / "msr_paraphrase_train.txt", [header, *rows])
    tabs(folder / "MRPC" / "msr_paraphrase_test.txt", [header, ["1", "8", "80", "a", "b"]])
    if ids is not None:
        tabs(folder / "MRPC" / "dev_ids.tsv", ids)
    return folder


def test_mrpcs_original_files_are_cut_by_glues_list_of_dev_rows(tmp_path: Path) -> None:
    splits = load_splits(settings("mrpc", msr(tmp_path, ids=[("1", "10"), ("4", "40")])))
    assert splits.train.text == ["one 0", "one 2", "one 3", "one 5"]
    assert (splits.dev.text, splits.dev.labels) == (["one 1", "one 4"], [1, 0])
    assert splits.dev.text_pair == ['two "1', 'two "4']
    # Nobody reads the labels of a split that is not evaluated.
    assert (splits.test.text, splits.test.kind) == (["a"], "unlabelled")


def test_mrpcs_ids_are_found_by_their_names_and_asked_for_where_they_are_missing(
    tmp_path: Path,
) -> None:
    root = msr(tmp_path, ids=[("1", "10")])
    train = root / "MRPC" / "msr_paraphrase_train.txt"
    lines = [line.split("\t") for line in train.read_text(encoding="utf-8").splitlines()]
    # The label comes last.
    tabs(train, [[*rest, label.lstrip("\ufeff")] for label, *rest in lines])
    assert load_splits(settings("mrpc", root)).dev.text == ["one 1"]
    tabs(train, [[label.lstrip("\ufeff"), *strings] for label, _, _, *strings in lines])
    with pytest.raises(DataError, match="expected the columns #1 ID, #2 ID"):
        load_splits(settings("mrpc", root))


def test_mrpcs_original_files_without_that_list_are_evaluated_on_test(tmp_path: Path) -> None:
    splits = load_splits(settings("mrpc", msr(tmp_path, ids=None)))
    assert (len(splits.train), splits.dev.text) == (6, ["a"])
    assert any("its test split is evaluated" in said for said in splits.notices)


@pytest.mark.parametrize(
    ("task", "column", "rows"),
    [
        ("tnews", "label_desc", [("100", "news_story"), ("116", "news_game")]),
        ("iflytek", "label_des", [(0, "打车"), ("118", "其他")]),
    ],
)
def test_clues_own_files_give_names_for_its_numbers(
    task: str, column: str, rows: list[tuple[object, str]], tmp_path: Path
) -> None:
    folder = tmp_path / f"{task}_public"
    for split in ("train", "dev"):
        content = [
            {"label": code, column: name, "sentence": f"{split} {name}"} for code, name in rows
        ]
        json_lines(folder / f"{split}.json", content)
    json_lines(folder / "test.json", [{"id": 0, "sentence": "test"}])
    # CLUE gives the labels in a file of their own, which is no split.
    json_lines(folder / "labels.json", [{"label": "0", column: "x"}])
    splits = load_splits(settings(task, tmp_path))
    names = splits.train.label_names or ()
    assert [names[int(label)] for label in splits.train.labels or []] == [name for _, name in rows]
    assert len(names) == {"tnews": 15, "iflytek": 119}[task]
    assert splits.dev.text == [f"dev {name}" for _, name in rows]


@pytest.mark.parametrize(
    ("row", "match"),
    [
        ({"label": "105", "label_desc": "news_x"}, "line 1: Unknown label '105'.*Known: 100, 101"),
        ({"label": "100", "label_desc": "news_car"}, "label 100 of tnews is 'news_story', but the"),
    ],
)
def test_a_label_of_clue_that_is_none_is_an_error(
    row: dict[str, str], match: str, tmp_path: Path
) -> None:
    json_lines(tmp_path / "tnews" / "train.json", [{**row, "sentence": "text"}])
    with pytest.raises(DataError, match=match):
        load_splits(settings("tnews", tmp_path))


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
    assert splits.test.kind == "unlabelled"


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
def test_what_the_hub_calls_the_classes_is_turned_into_the_tasks_names(
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
    with pytest.raises(SettingError, match="No folder of task 'sst2' .* holds STS-B.*called sst2"):
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


def test_a_folder_of_ones_own_with_tsv_files_is_no_glue_layout(tmp_path: Path) -> None:
    own = [["a", "b", "0"], ["c", "d", "1"], ["e", "f", "0"], ["g", "h", "1"]]
    tabs(tmp_path / "rte" / "train.tsv", [["text", "text_pair", "label"], *own])
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
def test_another_source_is_no_known_task(source: str) -> None:
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


def test_every_task_is_found_by_its_own_name_and_hub_id() -> None:
    for name, task in TASKS.items():
        assert task_of(name) is task
        if name != "paws":  # its configuration carries another name
            assert task_of(task.hub) is task
