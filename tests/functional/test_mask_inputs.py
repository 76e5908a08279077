"""Inputs of a mask: the probability of a saliency, and the rows with a gradient."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from temper.functional.masks import MANY_ROWS, keep_probability, random_levels, touched_rows
from temper.seeding import generator


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0.1, 50))
def test_an_entry_moves_with_the_probability_of_equation_9(
    saliency: float, alpha: float, beta: float
) -> None:
    s = torch.tensor([saliency], dtype=torch.float64)
    moves = keep_probability(s, alpha=alpha, beta=beta).item()
    assert moves == pytest.approx(1 / (1 + math.exp(-2 * beta * (saliency - alpha))), rel=1e-9)
    printed = keep_probability(s, alpha=alpha, beta=beta, orientation="printed").item()
    assert printed == pytest.approx(1 - moves, abs=1e-12)


def test_touched_rows_of_a_vocabulary_are_found() -> None:
    gradient = torch.zeros(MANY_ROWS, 3)
    gradient[[7, 4000], [1, 2]] = torch.tensor([-1e-20, 2.0])
    gradient[90] = float("nan")
    assert touched_rows(gradient).tolist() == [7, 90, 4000]
    # In half precision a square vanishes that does not in single.
    half = torch.zeros(MANY_ROWS, 2, dtype=torch.float16)
    half[5, 0] = 1e-4
    assert touched_rows(half).tolist() == [5]
    double = torch.zeros(MANY_ROWS, 2, dtype=torch.float64)
    double[6, 1] = 1e-100
    assert touched_rows(double).tolist() == [6]


def test_touched_rows_of_a_part_equal_those_of_the_whole() -> None:
    part = torch.zeros(10, 3)
    part[[2, 5]] = 1.0
    whole = torch.Size([MANY_ROWS, 3])
    result = touched_rows(part, whole)
    assert result is not None
    assert result.tolist() == [2, 5]
    assert touched_rows(part, whole, counted=lambda here: here + MANY_ROWS // 2) is None
    assert touched_rows(part) is None


def test_small_or_mostly_touched_tensors_count_all_rows() -> None:
    assert touched_rows(torch.zeros(MANY_ROWS - 1, 2)) is None
    assert touched_rows(torch.zeros(MANY_ROWS)) is None
    assert touched_rows(torch.zeros(MANY_ROWS, 1, 1)) is None
    half = torch.zeros(MANY_ROWS, 1)
    half[::2] = 1.0
    assert len(touched_rows(half)) == MANY_ROWS // 2
    half[1] = 1.0
    assert touched_rows(half) is None


def test_levels_depend_only_on_their_generator() -> None:
    first = random_levels(9, generator(1))
    torch.rand(7)
    state = torch.get_rng_state()
    assert torch.equal(first, random_levels(9, generator(1)))
    assert not torch.equal(first, random_levels(9, generator(2)))
    assert torch.equal(state, torch.get_rng_state())
