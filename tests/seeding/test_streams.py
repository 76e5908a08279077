from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from temper.seeding import Streams, derive_seed, generator, seeded

keys = st.tuples(st.integers(0, 2**62), st.text(max_size=5), st.integers(0, 100))


@given(keys)
def test_a_seed_is_a_function_of_its_key_and_fits_torch(key: tuple[int, str, int]) -> None:
    first = derive_seed(*key)
    assert first == derive_seed(*key)
    assert 0 <= first < 1 << 63
    generator(first)


@given(keys, keys)
def test_different_keys_have_different_seeds(
    first: tuple[int, str, int], second: tuple[int, str, int]
) -> None:
    assert (derive_seed(*first) == derive_seed(*second)) == (first == second)


def test_seeds_are_the_same_on_every_machine() -> None:
    # Recorded: a change would break the resuming of every stored run.
    assert derive_seed(0, "mask", 1) == 8650551468248303789


def test_local_streams_know_step_micro_batch_and_rank() -> None:
    start = Streams(7)
    positions = [
        start,
        start.at(step=1),
        start.at(step=0, micro=1),
        Streams(7, rank=1),
        Streams(8),
    ]
    seeds = {index.local("dropout") for index in positions} | {start.local("noise")}
    assert len(seeds) == len(positions) + 1


def test_shared_streams_are_alike_on_every_rank_and_micro_batch() -> None:
    first = Streams(7, step=3, micro=0, rank=0)
    second = Streams(7, step=3, micro=2, rank=1)
    assert first.shared("mask") == second.shared("mask")
    assert first.shared("mask") != first.at(step=4).shared("mask")
    assert first.shared("mask") != first.shared("mask", "epoch", 1)


def test_a_seeded_block_is_reproducible_and_keeps_the_callers_random_state() -> None:
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    with seeded(5):
        first = torch.rand(3)
    with seeded(5):
        assert torch.equal(torch.rand(3), first)
    assert torch.equal(torch.rand(2), expected)


def test_a_seeded_block_restores_the_random_state_after_an_exception() -> None:
    before = torch.get_rng_state()

    def draw_and_fail() -> None:
        with seeded(5):
            torch.rand(1)
            raise KeyError("planted")

    with pytest.raises(KeyError, match="planted"):
        draw_and_fail()
    assert torch.equal(torch.get_rng_state(), before)
