from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from temper.functional.norms import (
    ascent_step,
    project,
    scoped_norm,
    vocabulary_gradient,
    within_example_rank,
)

# Two examples of two tokens of two channels.
VALUES = torch.tensor([[[3.0, 0.0], [0.0, -4.0]], [[6.0, 8.0], [0.0, 0.0]]])
ALL = torch.ones(2, 2, dtype=torch.bool)


def test_norms_by_hand() -> None:
    assert scoped_norm(VALUES, norm="l2", scope="example").flatten().tolist() == [5.0, 10.0]
    assert scoped_norm(VALUES, norm="l2", scope="token").flatten().tolist() == [3.0, 4.0, 10.0, 0.0]
    assert scoped_norm(VALUES, norm="l2", scope="batch").item() == pytest.approx(125**0.5)
    assert scoped_norm(VALUES, norm="linf", scope="example").flatten().tolist() == [4.0, 8.0]
    assert scoped_norm(VALUES, norm="sign", scope="batch").item() == 8.0


def test_a_step_by_hand() -> None:
    step = ascent_step(VALUES, ALL, epsilon=0.5)
    expected = [[[0.3, 0.0], [0.0, -0.4]], [[0.3, 0.4], [0.0, 0.0]]]
    torch.testing.assert_close(step, torch.tensor(expected))
    step = ascent_step(VALUES, ALL, epsilon=0.5, norm="linf", scope="token")
    expected = [[[0.5, 0.0], [0.0, -0.5]], [[0.375, 0.5], [0.0, 0.0]]]
    torch.testing.assert_close(step, torch.tensor(expected))
    step = ascent_step(VALUES, ALL, epsilon=0.5, norm="sign")
    expected = [[[0.5, 0.0], [0.0, -0.5]], [[0.5, 0.5], [0.0, 0.0]]]
    torch.testing.assert_close(step, torch.tensor(expected))


def test_a_relative_step_is_a_share_of_the_embeddings_that_may_move() -> None:
    embeddings = torch.full((2, 2, 2), 2.0)
    mask = torch.tensor([[True, True], [True, False]])
    step = ascent_step(VALUES, mask, epsilon=0.1, embeddings=embeddings)
    # Norms of the embeddings: sqrt(4 * 4) = 4 with both tokens, sqrt(2 * 4) with one.
    assert step[0].norm().item() == pytest.approx(0.4)
    assert step[1].norm().item() == pytest.approx(0.1 * 8**0.5)


gradients = st.integers(0, 2**31).map(
    lambda seed: torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(seed))
)
masks = st.lists(st.integers(1, 4), min_size=3, max_size=3).map(
    lambda lengths: torch.arange(4) < torch.tensor(lengths)[:, None]
)


@given(gradients, masks, st.floats(1e-3, 1e2), st.integers(-24, 24))
def test_a_step_has_the_budget_s_norm_at_any_scale_of_the_gradient_and_is_0_at_padding(
    gradient: Tensor, mask: Tensor, epsilon: float, scale: int
) -> None:
    step = ascent_step(gradient * 10.0**scale, mask, epsilon=epsilon)
    torch.testing.assert_close(
        step.flatten(1).norm(dim=1), torch.full((3,), epsilon), rtol=1e-4, atol=0
    )
    assert not step[~mask].any()
    step = ascent_step(gradient * 10.0**scale, mask, epsilon=epsilon, norm="linf", scope="token")
    sizes = step.abs().amax(-1)
    torch.testing.assert_close(
        sizes[mask], torch.full_like(sizes[mask], epsilon), rtol=1e-4, atol=0
    )
    assert not step[~mask].any()


@given(gradients, masks)
def test_what_lies_at_padding_changes_no_step(gradient: Tensor, mask: Tensor) -> None:
    other = torch.where(mask[..., None], gradient, 1e6)
    torch.testing.assert_close(
        ascent_step(other, mask, epsilon=1.0, scope="batch"),
        ascent_step(gradient, mask, epsilon=1.0, scope="batch"),
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_example_without_a_usable_gradient_is_left_where_it_is(bad: float) -> None:
    gradient = VALUES.clone()
    gradient[0] = 0
    gradient[1, 0, 0] = bad
    assert ascent_step(gradient, ALL, epsilon=1.0).tolist() == torch.zeros(2, 2, 2).tolist()


def test_a_step_carries_no_graph_and_widens_half_precision() -> None:
    gradient = VALUES.to(torch.bfloat16).requires_grad_()
    step = ascent_step(gradient, ALL, epsilon=1e-4)
    assert not step.requires_grad
    assert step.dtype == torch.float32
    assert ascent_step(VALUES.double(), ALL, epsilon=1.0).dtype == torch.float64


@given(gradients, masks, st.floats(0.1, 10))
def test_projection_shrinks_to_the_ball_and_moves_nothing_inside_it(
    delta: Tensor, mask: Tensor, budget: float
) -> None:
    radius = torch.tensor(budget)
    shrunk = project(delta, mask, budget=radius, norm="l2", scope="example")
    inside = delta * mask[..., None]
    for row in range(3):
        size = inside[row].norm()
        expected = inside[row] if size <= budget else inside[row] * budget / size
        torch.testing.assert_close(shrunk[row], expected)
    clamped = project(delta, mask, budget=radius, norm="linf", scope="token")
    torch.testing.assert_close(clamped, inside.clamp(-budget, budget))


def test_projecting_0_gives_0() -> None:
    zero = torch.zeros(2, 2, 2)
    found = project(zero, ALL, budget=torch.tensor(0.0), norm="l2", scope="example")
    assert torch.equal(found, zero)


def test_the_matrix_s_gradient_is_the_sum_over_a_word_s_occurrences() -> None:
    matrix = torch.randn(5, 2, requires_grad=True)
    ids = torch.tensor([[1, 2], [1, 1]])
    (matrix[ids] * VALUES).sum().backward()
    looked_up, size = vocabulary_gradient(VALUES, ids, vocabulary=5)
    torch.testing.assert_close(looked_up, matrix.grad[ids])
    torch.testing.assert_close(size, matrix.grad.norm())


def test_ranks_by_hand() -> None:
    found = within_example_rank(torch.tensor([[5.0, 1.0, 3.0], [2.0, 2.0, 7.0], [4.0, 4.0, 4.0]]))
    assert found.tolist() == [[1.0, 0.0, 0.5], [0.25, 0.25, 1.0], [0.5, 0.5, 0.5]]
    assert within_example_rank(torch.ones(2, 1)).tolist() == [[0.5], [0.5]]


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 8.0]), min_size=2, max_size=12))
def test_a_rank_is_the_share_of_smaller_channels_and_half_of_the_equal_ones(
    values: list[float],
) -> None:
    found = within_example_rank(torch.tensor([values]))[0].tolist()
    for value, rank in zip(values, found, strict=True):
        smaller = sum(other < value for other in values)
        equal = sum(other == value for other in values) - 1
        assert rank == pytest.approx((smaller + equal / 2) / (len(values) - 1))
