"""Batches of like length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.data.batches import LengthBucketSampler, ordered_batches
from temper.errors import SettingError

LENGTHS = st.lists(st.integers(1, 100), max_size=200)


@given(
    lengths=LENGTHS,
    batch_size=st.integers(1, 20),
    seed=st.integers(0, 9),
    epoch=st.integers(0, 9),
)
def test_every_epoch_sees_each_row_once(
    lengths: list[int], batch_size: int, seed: int, epoch: int
) -> None:
    sampler = LengthBucketSampler(lengths, batch_size=batch_size, seed=seed)
    sampler.set_epoch(epoch)
    assert sorted(sampler) == list(range(len(lengths)))


@given(lengths=LENGTHS, batch_size=st.integers(1, 20))
def test_evaluation_batches_hold_each_row_once_longest_first(
    lengths: list[int], batch_size: int
) -> None:
    batches = ordered_batches(lengths, batch_size=batch_size)
    flat = [index for batch in batches for index in batch]
    assert sorted(flat) == list(range(len(lengths)))
    assert [lengths[i] for i in flat] == sorted(lengths, reverse=True)
    assert all(len(batch) == batch_size for batch in batches[:-1])


def order(seed: int, epoch: int) -> list[int]:
    sampler = LengthBucketSampler([i % 7 for i in range(100)], batch_size=8, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)


def test_the_order_is_a_function_of_seed_and_epoch_alone() -> None:
    assert order(1, 2) == order(1, 2)
    assert order(1, 2) != order(1, 3)
    assert order(1, 2) != order(2, 2)


def test_batches_are_shuffled_after_sorting() -> None:
    lengths = list(range(1, 101))
    firsts = [lengths[i] for i in list(LengthBucketSampler(lengths, batch_size=10, seed=0))[::10]]
    assert firsts != sorted(firsts)


def test_batches_of_one_pool_hold_neighbours_in_length() -> None:
    lengths = [37 * i % 100 for i in range(100)]
    batches = list(LengthBucketSampler(lengths, batch_size=10, seed=0))
    for start in range(0, 100, 10):
        batch = sorted(lengths[i] for i in batches[start : start + 10])
        assert batch == list(range(batch[0], batch[0] + 10))


def test_the_short_batch_stays_last_and_holds_other_rows_each_epoch() -> None:
    lengths = [1] * 12 + [50] * 11
    sampler = LengthBucketSampler(lengths, batch_size=10, seed=0)
    tails = set()
    for epoch in range(20):
        sampler.set_epoch(epoch)
        tails.add(frozenset(list(sampler)[20:]))
    assert len(tails) > 10
    assert {len(tail) for tail in tails} == {3}


@pytest.mark.parametrize(
    "call", [ordered_batches, lambda x, **k: LengthBucketSampler(x, seed=0, **k)]
)
def test_a_batch_of_no_rows_is_an_error(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SettingError, match="`batch_size` must be >= 1, got 0"):
        call([1, 2], batch_size=0)
