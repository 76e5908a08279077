"""Groups and contrast pairs of a source: which column holds them, and what stands in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.data.columns import Columns, read_names
from temper.data.sources import load_examples
from temper.data.table import Table
from temper.errors import DataError
from tests.data.task_files import json_lines, splits_of


def table(values: list[Any]) -> Table:
    return Table("made.csv", ("mark",), lambda _: values, len(values), source={})


def test_groups_and_pairs_are_read_by_their_usual_names(tmp_path: Path) -> None:
    file = json_lines(
        tmp_path / "set.jsonl",
        [
            {"text": "one", "label": 0, "group": "news", "pair_id": 7},
            {"text": "two", "label": 1, "group": "", "pair_id": 7},
            {"text": "three", "label": 1, "group": None, "pair_id": -1},
        ],
    )
    found = load_examples(str(file))
    assert found.group == ["news", None, None]
    assert found.pair == ["7", "7", None]
    assert found.select([2, 0]).group == [None, "news"]


def test_a_named_group_column_comes_before_the_usual_one(tmp_path: Path) -> None:
    rows = [{"text": "one", "label": 0, "group": "a", "genre": "fiction"}]
    file = json_lines(tmp_path / "set.jsonl", rows)
    assert load_examples(str(file), columns=Columns(group="genre")).group == ["fiction"]
    assert load_examples(str(file), columns=Columns(group="genre"), labelled=False).group == [
        "fiction"
    ]


def test_a_group_column_that_is_not_there_or_is_the_label_is_refused(tmp_path: Path) -> None:
    file = json_lines(tmp_path / "set.jsonl", [{"text": "one", "label": 0, "genre": "fiction"}])
    with pytest.raises(DataError, match=r"column 'gender'.*'?genre"):
        load_examples(str(file), columns=Columns(group="gender"))
    with pytest.raises(DataError, match="text, pair, label and group must be different columns"):
        load_examples(str(file), columns=Columns(group="label"))


def test_groups_go_with_their_rows_into_a_carved_dev_split(tmp_path: Path) -> None:
    rows = [
        {"text": f"text {index}", "label": index % 2, "genre": f"genre {index}"}
        for index in range(20)
    ]
    source = json_lines(tmp_path / "train.jsonl", rows)
    splits = splits_of(source, group_column="genre", dev_share=0.3)
    for split in (splits.train, splits.dev):
        assert split.group == [text.replace("text", "genre") for text in split.text]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([3.0, float("nan"), 12.0], ["3", None, "12"]),
        ([True, False, None], ["True", "False", None]),
        ([" a ", "b", "-1"], ["a", "b", None]),
        ([None, "", -1], None),
    ],
)
def test_what_a_column_of_names_holds(values: list[Any], names: Any) -> None:
    assert read_names(table(values), "mark") == names


@pytest.mark.parametrize("value", [0.5, ["a"], {"a": 1}])
def test_a_group_is_a_word_or_a_whole_number(value: object) -> None:
    with pytest.raises(DataError, match=r"made\.csv.*'mark' must be a word or a whole number"):
        read_names(table(["a", value]), "mark")


@given(st.lists(st.one_of(st.none(), st.integers(), st.text()), min_size=1))
def test_no_row_is_lost_and_equal_values_share_a_name(values: list[Any]) -> None:
    names = read_names(table(values), "mark") or [None] * len(values)
    assert len(names) == len(values)
    by_value: dict[Any, set[Any]] = {}
    for value, name in zip(values, names, strict=True):
        by_value.setdefault((type(value), value), set()).add(name)
    assert all(len(found) == 1 for found in by_value.values())


def test_labels_are_read_where_there_are_some(tmp_path: Path) -> None:
    with_labels = json_lines(tmp_path / "a.jsonl", [{"text": "one", "label": 1}])
    without = json_lines(tmp_path / "b.jsonl", [{"text": "one"}])
    assert load_examples(str(with_labels), labelled=None).labels == [1]
    assert load_examples(str(without), labelled=None).kind == "unlabelled"
    with pytest.raises(DataError, match="has no labels"):
        load_examples(str(without))
