"""Examples: hashes, draws, overlap and label names."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.data.examples import Examples
from temper.errors import DataError


def labeled(labels: list[int], names: tuple[str, ...] | None = None) -> Examples:
    text = [f"row {index}" for index in range(len(labels))]
    return Examples("toy", text, labels=labels, label_names=names, kind="classification")


def test_set_hash_changes_with_order_and_with_one_label() -> None:
    base = labeled([0, 1, 1])
    assert base.hash == labeled([0, 1, 1]).hash
    assert len({base.hash, labeled([0, 1, 0]).hash, base.select([0, 2, 1]).hash}) == 3


def test_sample_is_stratified_and_keeps_the_order() -> None:
    examples = labeled([0] * 60 + [1] * 30 + [2] * 10)
    drawn = examples.sample(10, seed=3)
    assert Counter(drawn.labels or []) == {0: 6, 1: 3, 2: 1}
    indices = [examples.text.index(text) for text in drawn.text]
    assert indices == sorted(indices)


def test_sample_keeps_a_rare_class() -> None:
    # Fractions of 4: 3.96 and .04; without the rule the rare class would get none.
    assert Counter(labeled([0] * 99 + [1]).sample(4, seed=0).labels or []) == {0: 3, 1: 1}


def test_sample_does_not_depend_on_the_order_of_the_file() -> None:
    examples = labeled([0, 1] * 20)
    backwards = examples.select(reversed(range(40)))
    assert set(examples.sample(9, seed=1).rows) == set(backwards.sample(9, seed=1).rows)


def test_sample_of_another_seed_differs() -> None:
    examples = labeled([0, 1] * 50)
    assert examples.sample(20, seed=0).rows != examples.sample(20, seed=1).rows


@given(labels=st.lists(st.integers(0, 4), min_size=1, max_size=60), data=st.data())
def test_sample_returns_the_requested_number_of_rows(
    labels: list[int], data: st.DataObject
) -> None:
    n = data.draw(st.integers(1, len(labels) + 5))
    drawn = labeled(labels).sample(n, seed=data.draw(st.integers(0, 5)))
    assert len(drawn) == min(n, len(labels))
    assert len(set(drawn.rows)) == len(drawn)
    if n >= len(set(labels)):
        assert set(drawn.labels or []) == set(labels)


def test_sample_of_no_rows_is_an_error() -> None:
    with pytest.raises(DataError, match="must be >= 1, got 0"):
        labeled([0, 1]).sample(0, seed=0)


def test_overlap_returns_the_rows_whose_texts_the_other_set_has() -> None:
    own = Examples("own", ["a", "b", "c", "b"])
    assert own.overlap(Examples("other", ["b", "z"])) == [1, 3]
    own = Examples("own", ["a", "a"], ["x", "y"])
    assert own.overlap(Examples("other", ["a"], ["y"])) == [1]


def test_labels_are_matched_by_name_ignoring_case_with_a_notice() -> None:
    mapped = labeled([0, 1, 0], ("Positive", "NEGATIVE")).map_labels(["negative", "positive"])
    assert mapped.labels == [1, 0, 1]
    assert mapped.label_names == ("negative", "positive")
    (notice,) = mapped.notices
    assert "'Positive' is 'positive', 'NEGATIVE' is 'negative'" in notice
    # Names that differ in case alone match exactly, and one that no row has need not be known.
    assert labeled([0], ("a",)).map_labels(["a", "A"]).labels == [0]
    assert labeled([1], ("neutral", "positive")).map_labels(["negative", "positive"]).labels == [1]


def test_an_ambiguous_name_ignoring_case_is_unknown() -> None:
    with pytest.raises(DataError, match="Unknown label 'POS'"):
        labeled([0], ("POS",)).map_labels(["pos", "Pos"])


@pytest.mark.parametrize("names", [("3", "1"), ("3.0", "1.0")])
def test_names_that_are_numerals_match_as_names(names: tuple[str, str]) -> None:
    mapped = labeled([0, 1], names).map_labels(["1", "2", "3", "4", "5"])
    assert (mapped.labels, mapped.notices) == ([2, 0], ())


def test_bare_integers_are_the_names_of_a_target_of_numerals() -> None:
    assert labeled([0, 1, 1]).map_labels(["-1", "0", "1"]).labels == [1, 2, 2]
    assert labeled([1, 2, 4]).map_labels(["1", "2", "3", "4", "5"]).labels == [0, 1, 3]
    mapped = labeled([0, 1]).map_labels(["1", "0"])
    assert (mapped.labels, mapped.notices) == ([1, 0], ())
    with pytest.raises(DataError, match="Unknown label '0'.*Known: 1, 2"):
        labeled([0, 1]).map_labels(["1", "2"])


def test_bare_integers_are_matched_to_words_by_index_with_a_notice() -> None:
    mapped = labeled([0, 1]).map_labels(["pos", "neg"])
    assert mapped.labels == [0, 1]
    (notice,) = mapped.notices
    assert "matched by index: 0 is 'pos', 1 is 'neg'" in notice


def test_placeholder_names_match_by_index_only() -> None:
    for own in (None, ("LABEL_0", "LABEL_1"), ("0", "1")):
        mapped = labeled([0, 1], own).map_labels(["LABEL_0", "LABEL_1"])
        assert (mapped.labels, mapped.notices) == ([0, 1], ())
    for own in (("negative", "positive"), ("1", "2"), ("1", "0")):
        with pytest.raises(DataError, match=f"Unknown label '{own[0]}'.*Known: LABEL_0, LABEL_1"):
            labeled([0, 1], own).map_labels(["LABEL_0", "LABEL_1"])


def test_a_label_unknown_to_the_target_is_named() -> None:
    examples = labeled([0, 1], ("positive", "neutrl"))
    with pytest.raises(DataError, match=r"Unknown label 'neutrl'. Did you mean 'neutral'"):
        examples.map_labels(["negative", "neutral", "positive"])


def test_an_index_beyond_the_target_is_an_error() -> None:
    with pytest.raises(DataError, match="Label 2 of .*, row 2 is out of range: .* 2 labels"):
        labeled([0, 2]).map_labels(["negative", "positive"])


def test_columns_must_fit_each_other_and_the_kind() -> None:
    with pytest.raises(DataError, match="2 texts but 1 labels"):
        Examples("toy", ["a", "b"], labels=[0], kind="classification")
    with pytest.raises(DataError, match="has kind 'unlabeled', but it has labels"):
        Examples("toy", ["a"], labels=[0])
