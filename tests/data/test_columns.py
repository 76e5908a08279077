"""Columns of a source: labels, groups and contrast pairs, and errors that name the row."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.data.columns import Columns, read_names
from temper.data.labels import LabelColumn, Labels
from temper.data.sources import load_examples
from temper.data.table import Table
from temper.errors import DataError
from tests.data.task_files import json_lines, splits_of

NAMES = ("negative", "positive")


def column(values: list[object], **options) -> LabelColumn:  # type: ignore[no-untyped-def]
    lines = [index + 2 for index in range(len(values))]
    table = Table("a.csv", ("label",), {"label": values}.__getitem__, len(values), lines)
    return LabelColumn(table, "label", **options)


def read(values: list[object], **options) -> Labels:  # type: ignore[no-untyped-def]
    return column(values, **options).read()


@pytest.mark.parametrize(
    ("values", "expected", "names"),
    [
        (["pos", "neg", "pos"], [1, 0, 1], ("neg", "pos")),
        (["1", "0", "2"], [1, 0, 2], None),
        ([1, 0, 2], [1, 0, 2], None),
        ([True, False], [1, 0], ("false", "true")),
        ([" pos", "neg "], [1, 0], ("neg", "pos")),
    ],
)
def test_words_and_integers_are_classes(
    values: list[object], expected: list[int], names: tuple[str, ...] | None
) -> None:
    labels = read(values)
    assert (labels.values, labels.names, labels.kind) == (expected, names, "classification")
    assert labels.notices == ()


def test_given_names_order_the_words_and_numerals_that_are_names_stay_names() -> None:
    assert read(["b", "a"], names=("b", "a")).values == [0, 1]
    assert read(["5", "1"], names=("1", "3", "5")).values == [2, 0]


@pytest.mark.parametrize("values", [[0.5, 2.0], ["0.5", "2"], [1, 2.5], [5.0, 2.0], ["1e-1", "3."]])
def test_floats_are_targets(values: list[object]) -> None:
    labels = read(values)
    assert labels.kind == "regression"
    assert labels.values == [float(str(value)) for value in values]
    assert labels.names is None


@pytest.mark.parametrize("values", [[1.0, 0.0, 2.0], ["1.0", "0.0", "2.0"]])
def test_whole_floats_without_a_gap_are_classes_and_this_is_reported(values: list[object]) -> None:
    labels = read(values)
    assert labels.values == [1, 0, 2]
    assert all(type(value) is int for value in labels.values or [])
    assert "labels such as 1.0 in 'label' are whole numbers from 0 to 2" in labels.notices[0]
    assert "data.kind=regression" in labels.notices[0]


@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0], ["1.0", "3.0"], [0.0, 2.0], [-1.0, 0.0, 1.0]])
def test_other_whole_floats_are_targets_and_this_is_reported(values: list[object]) -> None:
    labels = read(values)
    assert labels.kind == "regression"
    assert "data.kind=classification" in labels.notices[0]
    # Numbers with a fraction can be nothing else.
    assert read([*values, 0.5]).notices == () if isinstance(values[0], float) else True


CODES = [
    ([0, 4, 0], [0, 4, 0], None),
    (["1", "2", "1"], [1, 2, 1], None),
    (["1.0", "5.0"], [1, 5], None),
    ([1.0, 5.0], [1, 5], None),
    ([-1, 0, 1], [0, 1, 2], ("-1", "0", "1")),
    (["1", "-1", "0"], [2, 0, 1], ("-1", "0", "1")),
    (["007", "070", "007"], [0, 1, 0], ("007", "070")),
    (["10", "007", "9"], [2, 0, 1], ("007", "9", "10")),
    (["+1", "-1"], [1, 0], ("-1", "+1")),
    (["1", "2", "other"], [0, 1, 2], ("1", "2", "other")),
]


@pytest.mark.parametrize(("values", "expected", "names"), CODES)
def test_whole_numbers_are_class_names_if_kind_is_classification(
    values: list[object], expected: list[int], names: tuple[str, ...] | None
) -> None:
    labels = read(values, kind="classification")
    assert (labels.values, labels.names, labels.notices) == (expected, names, ())
    assert labels.kind == "classification"


def test_numbers_that_cannot_be_indices_are_classes_and_this_is_reported() -> None:
    labels = read(["007", "070"])
    assert (labels.kind, labels.names) == ("classification", ("007", "070"))
    assert "numbers such as 007" in labels.notices[0]
    assert read(["007", "070"], kind="regression").values == [7.0, 70.0]
    (message,) = read(["007", "7"], kind="classification").notices
    assert "'007' and '7'" in message


def test_numbers_are_matched_to_class_names_that_are_numbers() -> None:
    for values in ([5, 1], ["5", "1"], [5.0, 1.0], ["5.0", "1"]):
        assert read(values, names=("1", "3", "5")).values == [2, 0]
    with pytest.raises(DataError, match="line 3: Unknown label '2'"):
        read([5, 2], names=("1", "3", "5"))
    assert read(["-1", "-1"], names=("-1", "0", "1")).values == [0, 0]
    # The features of a file say that its numbers are indices.
    assert read([1, 0], names=("1", "0"), are_indices=True).values == [1, 0]


def test_indices_of_names_may_be_counted_from_1_and_this_is_reported() -> None:
    labels = read([1, 2, 1], names=NAMES)
    assert (labels.values, labels.names, labels.first) == ([0, 1, 0], NAMES, 1)
    assert "1 to 2" in labels.notices[0]
    assert read([0, 1], names=NAMES).first == 0
    # Another split of the same file is counted in the same way, with any classes.
    assert read([1, 1], names=NAMES, first=1).values == [0, 0]
    with pytest.raises(DataError, match="line 2: 'label' must be >= 1 and <= 2 .*, got 0"):
        read([0, 1], names=NAMES, first=1)


@pytest.mark.parametrize("missing", ["nan", "NaN", " nan ", "<NA>", float("nan")])
def test_a_missing_value_among_words_is_no_class(missing: object) -> None:
    with pytest.raises(DataError, match=r"line 4: 'label' must be a label, got .*1 of 3 rows"):
        read(["good", "bad", missing])
    assert read([missing, missing]).kind == "unlabeled"
    if isinstance(missing, str):
        named = read(["good", missing], names=("good", missing.strip()))
        assert named.values == [0, 1]


def test_a_class_that_looks_like_a_missing_value_is_reported() -> None:
    (message,) = read(["good", "None", "bad", "None"]).notices
    assert "'None'" in message
    assert "2 rows" in message
    assert read(["good", "Nonesuch"]).notices == ()


@pytest.mark.parametrize(
    "label", ["['toxic', 'insult']", "['toxic']", '["a", "b"]', "[0, 1]", "[]", "('a', 'b')"]
)
def test_a_list_written_as_a_label_raises_an_error_with_its_line(label: str) -> None:
    with pytest.raises(DataError, match=r"line 3: 'label' must be one label, got a list.*1 of 2"):
        read(["toxic", label])
    assert read(["toxic", label], names=("toxic", label)).values == [0, 1]
    assert read(["[removed]", "(other)"]).names == ("(other)", "[removed]")


@pytest.mark.parametrize("sign", ["|", ";", ", ", "/", "+", "&"])
def test_cells_that_look_like_several_labels_are_counted(sign: str) -> None:
    labels = read(["a", "b", f"a{sign}b", f"b{sign}c"], kind="classification")
    (message,) = labels.notices
    assert "2 of 4 rows (50%)" in message
    assert f"'a{sign}b' at a.csv, line 4" in message
    assert labels.kind == "classification"
    # Parts that no other label has are no labels.
    assert read([f"arts{sign}crafts", "sports", "C++"]).notices == ()


def test_the_kind_given_decides() -> None:
    assert read([1.0, 0.0], kind="regression").values == [1.0, 0.0]
    assert read([3, 1], kind="regression").values == [3.0, 1.0]
    assert read([5.0, 0.0], kind="classification").values == [5, 0]


@pytest.mark.parametrize("values", [[None, None], ["", " "], [-1, -1], ["-1"], [-1.0]])
def test_a_column_without_labels_is_unlabeled(values: list[object]) -> None:
    assert read(values).kind == "unlabeled"
    assert read(values).values is None


BAD: list[tuple[list[object], dict[str, object], str]] = [
    ([0, None], {}, r"a.csv, line 3: 'label' must be a label, got nothing.*: 1 of 2 rows"),
    (["a", 1], {}, r"mixed types: a string, 'a', at a.csv, line 2; a number, 1, at a.csv, line 3"),
    (["1", "0", "good"], {}, r"mixed types: a number, '1', .*; a string, 'good', at a.csv, line 4"),
    ([True, 1], {}, "mixed types: a truth value, True"),
    ([0, [1]], {}, "line 3: 'label' must be .*, got a list"),
    ([0.5, math.nan], {}, "line 3: 'label' must be a label, got nan"),
    ([0.5, -math.inf], {}, "line 3: 'label' must be finite .*, got -inf"),
    (["0.5", "NaN"], {}, "line 3: 'label' must be a label, got 'NaN'"),
    ([0.5, 1e300], {}, "line 3: 'label' must be finite"),
    ([0, 10**400], {}, "line 3: 'label' must be finite"),
    (["0", "1" * 5000], {}, "line 3: 'label' must be finite"),
    (["a", "b\ud800"], {}, "line 3: 'label' .*half of a surrogate pair"),
    ([0, 1], {"names": ("yes", "yes")}, "two classes of 'label' are named 'yes'"),
    ([0, -2], {}, r"line 3: 'label' must be >= 0, got -2.*data.kind=classification"),
    ([0, 2], {"names": NAMES}, r"line 3: 'label' must be >= 0 and <= 1 \(negative, .*, got 2"),
    (["negative", "posit"], {"names": NAMES}, "line 3: Unknown label 'posit'. Did you mean"),
    ([0.0, 0.5], {"names": NAMES}, "line 3: 'label' must be a class index, got 0.5"),
    ([0, 0.5], {"kind": "classification"}, "line 3: 'label' must be a class index, got 0.5"),
    (["a", "b"], {"kind": "regression"}, "line 2: 'label' must be a number"),
]


@pytest.mark.parametrize(("values", "options", "message"), BAD)
def test_a_bad_label_is_named_with_its_line(
    values: list[object], options: dict[str, object], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read(values, **options)


@given(
    st.lists(st.sampled_from(["a", "0", "1", "2", "1.5", "inf", "nan", "", "['a']"]), min_size=1),
    st.sampled_from([None, "classification", "regression"]),
    st.sampled_from([None, ("a", "b"), ("0", "2")]),
)
def test_a_column_can_be_read_if_no_row_has_a_fault(
    values: list[object], kind: Any, names: tuple[str, ...] | None
) -> None:
    options = {"kind": kind, "names": names}
    faults = column(values, **options).faults()
    if faults:
        with pytest.raises(DataError, match=f"line {min(faults) + 2}: "):
            read(values, **options)
    kept = [value for index, value in enumerate(values) if index not in faults]
    try:
        labels = read(kept, **options)
    except DataError as error:
        # It is unknown which of them are wrong.
        if "mixed types" not in str(error):
            raise
    else:
        assert labels.values is None or len(labels.values) == len(kept)


@pytest.mark.parametrize("values", [["a", ["a", "b"]], ["a|b", 3]])
def test_several_labels_in_mixed_forms_are_an_error(values: list[object]) -> None:
    with pytest.raises(DataError, match="got a list|mixed types"):
        read(values, kind="multi_label")


def test_an_empty_cell_among_lists_has_no_label() -> None:
    labels = read([["a"], "", None, ["a", "b"]], kind="multi_label")
    assert [list(row) for row in labels.values or ()] == [[1, 0], [0, 0], [0, 0], [1, 1]]


def test_one_unknown_word_among_indices_is_the_only_fault() -> None:
    values: list[object] = ["0", "1", "?", "1"]
    for kind in (None, "classification"):
        assert list(column(values, kind=kind, names=NAMES).faults()) == [2]


@pytest.mark.parametrize("values", [["00", "2", "1"], ["0.0", "2"], [0, 2], [False, 2]])
def test_a_zero_in_any_form_shows_that_labels_are_counted_from_0(values: list[object]) -> None:
    assert list(column(values, names=NAMES).faults()) == [1]


def test_numerals_among_words_are_classes_if_the_kind_says_so() -> None:
    values: list[object] = ["1.5", "gold", "1.5"]
    assert column(values, kind="classification").faults() == {}
    assert read(values, kind="classification").names == ("1.5", "gold")


def test_a_whole_float_of_any_size_is_read_without_counting_up_to_it() -> None:
    assert read([0.0, 1e15]).kind == "regression"


VALUE = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=4)
    | st.just("\udc80")
)


@given(values=st.lists(VALUE | st.lists(st.integers()), min_size=1, max_size=6))
def test_any_column_has_labels_or_raises_a_data_error(values: list[object]) -> None:
    try:
        labels = read(values)
    except DataError as caught:
        labels, message = None, str(caught)
    if labels is None:
        assert "label" in message
        return
    if labels.kind == "unlabeled":
        assert labels.values is None
        return
    assert len(labels.values) == len(values)
    if labels.kind == "multi_label":
        assert {len(row) for row in labels.values} == {len(labels.names)}
        assert {value for row in labels.values for value in row} <= {0, 1}
        return
    assert all(math.isfinite(value) for value in labels.values)
    if labels.kind == "classification":
        assert min(labels.values) >= 0
        assert labels.names is None or max(labels.values) < len(labels.names)


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
    result = load_examples(str(file))
    assert result.group == ["news", None, None]
    assert result.pair == ["7", "7", None]
    assert result.select([2, 0]).group == [None, "news"]


def test_a_named_group_column_comes_before_the_usual_one(tmp_path: Path) -> None:
    rows = [{"text": "one", "label": 0, "group": "a", "genre": "fiction"}]
    file = json_lines(tmp_path / "set.jsonl", rows)
    assert load_examples(str(file), columns=Columns(group="genre")).group == ["fiction"]
    assert load_examples(str(file), columns=Columns(group="genre"), labeled=False).group == [
        "fiction"
    ]


def test_a_group_column_that_is_missing_or_the_label_raises_an_error(tmp_path: Path) -> None:
    file = json_lines(tmp_path / "set.jsonl", [{"text": "one", "label": 0, "genre": "fiction"}])
    with pytest.raises(DataError, match=r"column 'gender'.*'?genre"):
        load_examples(str(file), columns=Columns(group="gender"))
    with pytest.raises(DataError, match=r"different columns, got .*label"):
        load_examples(str(file), columns=Columns(group="label"))


def test_groups_go_with_their_rows_into_a_carved_dev_split(tmp_path: Path) -> None:
    rows = [
        {"text": f"text {index}", "label": index % 2, "genre": f"genre {index}"}
        for index in range(20)
    ]
    source = json_lines(tmp_path / "train.jsonl", rows)
    splits = splits_of(source, group_column="genre", dev_fraction=0.3)
    for split in (splits.train, splits.dev):
        assert split.group == [text.replace("text", "genre") for text in split.text]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([3.0, float("nan"), 12.0], ["3", None, "12"]),
        ([True, False, None], ["True", "False", None]),
        ([" a ", "b", "-1"], ["a", "b", None]),
        (["a", "nan", "NaN", "Nan's"], ["a", None, None, "Nan's"]),
        ([None, "", -1], None),
    ],
)
def test_class_names_are_read_from_a_column(values: list[Any], names: Any) -> None:
    assert read_names(table(values), "mark") == names


def test_a_group_of_half_a_surrogate_pair_raises_an_error() -> None:
    with pytest.raises(DataError, match=r"made\.csv.*'mark' .*surrogate pair"):
        read_names(table(["a", "b\udfff"]), "mark")


@pytest.mark.parametrize("value", [0.5, ["a"], {"a": 1}])
def test_a_group_is_a_word_or_a_whole_number(value: object) -> None:
    with pytest.raises(DataError, match=r"made\.csv.*'mark' must be .*whole number"):
        read_names(table(["a", value]), "mark")


@given(st.lists(st.one_of(st.none(), st.integers(), st.text()), min_size=1))
def test_no_row_is_lost_and_equal_values_share_a_name(values: list[Any]) -> None:
    names = read_names(table(values), "mark") or [None] * len(values)
    assert len(names) == len(values)
    by_value: dict[Any, set[Any]] = {}
    for value, name in zip(values, names, strict=True):
        by_value.setdefault((type(value), value), set()).add(name)
    assert all(len(result) == 1 for result in by_value.values())


def test_labels_are_read_if_there_are_any(tmp_path: Path) -> None:
    with_labels = json_lines(tmp_path / "a.jsonl", [{"text": "one", "label": 1}])
    without = json_lines(tmp_path / "b.jsonl", [{"text": "one"}])
    assert load_examples(str(with_labels), labeled=None).labels == [1]
    assert load_examples(str(without), labeled=None).kind == "unlabeled"
    with pytest.raises(DataError, match="has no labels"):
        load_examples(str(without))


@pytest.mark.parametrize("other", ["Good", "good\u200b", "\uff47ood", "GOOD"])
def test_labels_that_look_alike_are_two_classes_and_this_is_reported(
    tmp_path: Path, other: str
) -> None:
    file = tmp_path / "rows.jsonl"
    labels = ["good", "bad", other, "bad"] * 5
    rows = [{"text": f"text {index}", "label": label} for index, label in enumerate(labels)]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    notices = load_examples(str(file)).notices
    (notice,) = (each for each in notices if "look the same" in each)
    assert ascii(other) in notice
    assert "'good'" in notice
