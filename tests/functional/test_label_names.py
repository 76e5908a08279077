"""Names of classes: valid names and equal names."""

from __future__ import annotations

import pytest

from temper.errors import ModelError
from temper.functional.label_names import (
    GivenNames,
    are_indices,
    are_named,
    is_numeral,
    is_placeholder,
    match_names,
)


def test_placeholders_and_numerals_are_recognized_as_label_names() -> None:
    assert [is_placeholder(name) for name in ("LABEL_0", "label 12", "label", "0")] == [
        True, True, False, False,
    ]  # fmt: skip
    assert [is_numeral(name) for name in ("-1", "5.0", "5.5", "007", "LABEL_0")] == [
        True, True, False, False, False,
    ]  # fmt: skip
    assert not are_named(())
    assert are_named(["LABEL_0", "other"])
    assert are_indices(["0", "1.0", "LABEL_2"])
    assert not are_indices(["1", "2"])


def test_an_exact_name_wins_and_an_ambiguous_one_is_not_matched() -> None:
    assert match_names(["a", "A", "x"], ["A", "a"]) == [1, 0, None]
    assert match_names(["POS"], ["pos", "Pos"]) == [None]
    assert match_names(["1", "2.0", "007"], ["2", "1.0", "7"]) == [1, 0, None]


def test_given_names_replace_the_models_and_are_mapped_after() -> None:
    own = ("LABEL_0", "LABEL_1")
    assert GivenNames().applied(own) == own
    assert GivenNames(("pos", "neg")).applied(own) == ("pos", "neg")
    assert GivenNames(label_map={"LABEL_1": "neg"}).applied(own) == ("LABEL_0", "neg")
    assert GivenNames(("P", "N"), {"P": "pos"}).applied(own) == ("pos", "N")
    assert not GivenNames()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (GivenNames(("a", "b", "c")), "gives 3 names, a, b, c, and the model has 2 classes"),
        (GivenNames(label_map={"X": "a"}), "Unknown class 'X'. Known: A, B"),
        (GivenNames(label_map={"A": "B"}), "two classes .*the name 'B'"),
        (GivenNames(("a", "a")), "two classes .*the name 'a'"),
    ],
)
def test_names_that_do_not_fit_raise_an_error(given: GivenNames, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        given.applied(("A", "B"))
