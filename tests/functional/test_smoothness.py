"""Probes, directions, weights of layers and norms: numbers by hand, moments by many draws."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from temper.functional.smoothness import (
    Law,
    Strategy,
    directions,
    layer_weights,
    probes,
    root_mean_square,
    squared_norm,
    vector_jacobian_product,
)

LIKE = torch.zeros(1, dtype=torch.float64)
DRAWS = 40_000
# The largest of a few dozen means of so many draws; an entry's product has a variance below 2.
BOUND = 5 * math.sqrt(2 / DRAWS)

laws = st.sampled_from(["signs", "sphere", "zero_sum"])
masks = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(
    lambda lengths: torch.arange(6) < torch.tensor(lengths)[:, None]
)
seeds = st.integers(0, 2**31)


def drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("width", [2, 5])
@pytest.mark.parametrize("law", ["signs", "sphere", "zero_sum"])
def test_probes_have_mean_0_and_the_covariance_of_their_law(law: Law, width: int) -> None:
    result = probes((DRAWS, width), law, drawn(1), like=LIKE)
    expected = torch.eye(width, dtype=torch.float64)
    if law == "zero_sum":
        expected = expected - 1 / width
    assert result.mean(0).abs().max() < BOUND
    covariance = result.T @ result / DRAWS
    assert (covariance - expected).abs().max() < BOUND
    if law == "sphere":
        # E v^4 = 3 D / (D + 2), which 1 of signs is not; v^8 is at most D^4.
        fourth = result.pow(4).mean(0)
        assert (fourth - 3 * width / (width + 2)).abs().max() < 5 * width**2 / math.sqrt(DRAWS)


@given(laws, st.integers(2, 40), seeds)
def test_probes_have_the_exact_properties_of_their_distribution(
    law: Law, width: int, seed: int
) -> None:
    result = probes((6, width), law, drawn(seed), like=LIKE)
    assert result.dtype == torch.float64
    if law == "signs":
        assert torch.equal(result.abs(), torch.ones_like(result))
    elif law == "sphere":
        sizes = result.square().sum(1)
        torch.testing.assert_close(sizes, torch.full_like(sizes, width))
    else:
        assert result.sum(1).abs().max() < 1e-12
    assert torch.equal(result, probes((6, width), law, drawn(seed), like=LIKE))
    assert not torch.equal(
        probes((6, 40), law, drawn(seed), like=LIKE),
        probes((6, 40), law, drawn(seed + 1), like=LIKE),
    )


def test_zero_sum_probes_see_differences_of_dimensions_and_nothing_else() -> None:
    jacobian = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.0, 5.0]], dtype=torch.float64)
    # |J1 - J2|^2 = 4 + 9, |J1 - J3|^2 = 1 + 9, |J2 - J3|^2 = 9 + 36; over D = 3.
    expected = (13 + 10 + 45) / 3
    chosen = probes((DRAWS, 3), "zero_sum", drawn(2), like=LIKE)
    squares = (chosen @ jacobian).square().sum(1)
    error = float(squares.std()) / math.sqrt(DRAWS)
    assert abs(float(squares.mean()) - expected) < 4 * error
    torch.testing.assert_close(
        (chosen @ (jacobian + torch.tensor([7.0, -9.0]))).square().sum(1), squares
    )


def test_probes_of_half_precision_come_in_single() -> None:
    half = torch.zeros(1, dtype=torch.bfloat16)
    assert probes((2, 3), "sphere", drawn(0), like=half).dtype == torch.float32
    assert directions(torch.ones(1, 2).bool(), 3, drawn(0), like=half).dtype == torch.float32


@given(masks, st.integers(1, 5), seeds)
def test_directions_are_signs_on_real_tokens_and_0_at_padding(
    mask: Tensor, width: int, seed: int
) -> None:
    result = directions(mask, width, drawn(seed), like=LIKE)
    assert result.shape == (*mask.shape, width)
    assert torch.equal(result.abs(), mask.unsqueeze(-1).expand(result.shape).double())
    assert torch.equal(result, directions(mask, width, drawn(seed), like=LIKE))
    assert not torch.equal(*(directions(mask, 40, drawn(seed + by), like=LIKE) for by in (0, 1)))


def test_both_signs_of_a_direction_are_equally_likely() -> None:
    result = directions(torch.ones(DRAWS, 1).bool(), 2, drawn(3), like=LIKE)
    assert result.mean(0).abs().max() < BOUND


BY_HAND: list[tuple[Strategy, float, list[float]]] = [
    ("uniform", 1.0, [1 / 3, 1 / 3, 1 / 3]),
    # 1/s over their sum: 1, 1/2 and 1/4 over 7/4.
    ("normalized", 1.0, [4 / 7, 2 / 7, 1 / 7]),
    ("log", 1.0, [4 / 7, 2 / 7, 1 / 7]),
    # The square root of 1/s at temperature 2, its square at a half.
    ("log", 2.0, [2 / (3 + 2**0.5), 2**0.5 / (3 + 2**0.5), 1 / (3 + 2**0.5)]),
    ("log", 0.5, [16 / 21, 4 / 21, 1 / 21]),
    # e^-1, e^-2 and e^-4, by e^4.
    ("printed", 1.0, [each / (math.e**3 + math.e**2 + 1) for each in (math.e**3, math.e**2, 1)]),
    ("inverse", 1.0, [1 / 7, 2 / 7, 4 / 7]),
]


@pytest.mark.parametrize(("strategy", "temperature", "expected"), BY_HAND)
def test_weights_of_layers_by_hand(
    strategy: Strategy, temperature: float, expected: list[float]
) -> None:
    norms = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    result = layer_weights(norms, strategy, temperature=temperature)
    torch.testing.assert_close(result, torch.tensor(expected, dtype=torch.float64))


@given(masks, seeds)
def test_norms_do_not_depend_on_values_at_padding(mask: Tensor, seed: int) -> None:
    values = torch.randn((*mask.shape, 3), generator=drawn(seed), dtype=torch.float64)
    worse = torch.where(mask.unsqueeze(-1), values, torch.full_like(values, math.inf))
    for row, length in enumerate(mask.sum(1).tolist()):
        entries = values[row, :length].flatten().tolist()
        by_hand = sum(entry**2 for entry in entries)
        for given_values in (values, worse):
            assert float(squared_norm(given_values, mask)[row]) == pytest.approx(by_hand)
            size = float(root_mean_square(given_values, mask)[row])
            assert size == pytest.approx(math.sqrt(by_hand / len(entries)))


def test_the_size_of_the_embeddings_has_no_gradient_and_a_row_of_padding_none() -> None:
    values = torch.ones(2, 3, 2, requires_grad=True)
    mask = torch.tensor([[True, True, False], [False, False, False]])
    size = root_mean_square(values, mask)
    assert size.shape == (2,)
    assert not size.requires_grad
    assert size.tolist() == [1.0, 0.0]
    assert root_mean_square(torch.tensor([[[-3.0]]]), torch.tensor([[True]])).tolist() == [3.0]


def test_norms_of_half_precision_are_taken_in_single() -> None:
    # 300 squared is beyond fp16.
    values = torch.full((1, 2, 2), 300.0, dtype=torch.float16)
    mask = torch.ones(1, 2).bool()
    assert squared_norm(values, mask).tolist() == [360_000.0]
    assert root_mean_square(values, mask).flatten().tolist() == [300.0]


def test_a_vector_jacobian_product_is_that_of_the_jacobian_and_of_the_hessian() -> None:
    # h_i = x^T A_i x: J_i = (A_i + A_i^T) x, H_i = A_i + A_i^T.
    matrices = torch.randn(4, 6, 6, dtype=torch.float64, generator=drawn(0))
    words = torch.randn(2, 3, 2, dtype=torch.float64, generator=drawn(1), requires_grad=True)
    flat = words.flatten(1)
    states = torch.einsum("bi,kij,bj->bk", flat, matrices, flat)
    probe = torch.randn(2, 4, dtype=torch.float64, generator=drawn(2))
    symmetric = matrices + matrices.transpose(1, 2)
    gradient = vector_jacobian_product(states, words, probe, create_graph=True)
    expected = torch.einsum("bk,kij,bj->bi", probe, symmetric, flat).view_as(words)
    torch.testing.assert_close(gradient, expected)
    direction = torch.randn(2, 3, 2, dtype=torch.float64, generator=drawn(3))
    curved = vector_jacobian_product(gradient, words, direction)
    along = torch.einsum("bk,kij,bj->bi", probe, symmetric, direction.flatten(1))
    torch.testing.assert_close(curved, along.view_as(words))
    assert not curved.requires_grad
    # The graph is kept, and a probe of another precision is taken.
    torch.testing.assert_close(
        vector_jacobian_product(states, words, probe.float()),
        expected.detach(),
        atol=1e-5,
        rtol=1e-5,
    )


def test_states_that_do_not_depend_on_the_words_have_no_jacobian() -> None:
    words = torch.ones(1, 2, 2, requires_grad=True)
    other = torch.ones(1, 3, requires_grad=True)
    assert (
        vector_jacobian_product(2 * other, words, torch.ones(1, 3)).tolist()
        == torch.zeros(1, 2, 2).tolist()
    )
    assert vector_jacobian_product(torch.ones(1, 3), words, torch.ones(1, 3)).shape == words.shape
