"""Hashes held as numbers read as the strings they are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from temper.data.stored import RowHashes, hashes_at, row_hash

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=9)


@given(TEXTS, st.data())
def test_held_hashes_are_those_of_each_text(texts: list[str], data: st.DataObject) -> None:
    found, wanted = RowHashes.of(texts), [row_hash(text) for text in texts]
    assert list(found) == wanted
    assert [found[place] for place in range(len(texts))] == wanted
    assert found == wanted
    assert wanted == found
    assert set(found) == set(wanted)
    assert found[1:] == wanted[1:]
    assert found != [*wanted, "0" * 16]
    if texts:
        assert found[-1] == wanted[-1]
        assert found != [*wanted[:-1], "another"]
        places = data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=9))
        assert hashes_at(found, places) == [wanted[place] for place in places]
        assert hashes_at(wanted, places) == [wanted[place] for place in places]


def test_hashes_of_pairs_know_where_the_first_text_ends() -> None:
    found = RowHashes.of(["ab", "a"], ["c", "bc"])
    assert list(found) == [row_hash("ab", "c"), row_hash("a", "bc")]
    assert found[0] != found[1]


def test_a_hash_keeps_its_leading_zeros() -> None:
    # The first text of this form whose hash begins with a zero.
    text = next(text for text in map(str, range(1000)) if row_hash(text).startswith("0"))
    assert RowHashes.of([text])[0] == row_hash(text)
    assert len(RowHashes.of([text])[0]) == 16


def test_a_string_is_no_sequence_of_hashes() -> None:
    assert RowHashes.of([]) != ""
    assert "rows=1" in repr(RowHashes.of(["good"]))
