from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from temper.functional.norms import (
    masked,
    project,
    size,
    steepest,
    vocabulary_gradient,
    within_example_rank,
)

# Two examples of two tokens of two channels.
VALUES = torch.tensor([[[3.0, 0.0], [0.0, -4.0]], [[6.0, 8.0], [0.0, 0.0]]])


def test_directions_by_hand() -> None:
    expected = [[[0.6, 0.0], [0.0, -0.8]], [[0.6, 0.8], [0.0, 0.0]]]
    torch.testing.assert_close(steepest(VALUES, norm="l2"), torch.tensor(expected))
    expected = [[[1.0, 0.0], [0.0, -1.0]], [[0.75, 1.0], [0.0, 0.0]]]
    scaled = steepest(VALUES, norm="linf_scaled", scope="token")
    torch.testing.assert_close(scaled, torch.tensor(expected))
    assert torch.equal(steepest(VALUES, norm="linf"), VALUES.sign())


AXES = {"example": (1, 2), "token": (2,), "batch": (0, 1, 2)}
normals = st.integers(0, 2**31).map(
    lambda seed: torch.randn(
        3, 4, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
)
masks = st.lists(st.integers(1, 4), min_size=3, max_size=3).map(
    lambda lengths: torch.arange(4) < torch.tensor(lengths)[:, None]
)


def plain_size(values: Tensor, *, norm: str, scope: str) -> Tensor:
    order = 2 if norm == "l2" else torch.inf
    return torch.linalg.vector_norm(values, ord=order, dim=AXES[scope], keepdim=True)


@given(normals, normals, masks, st.floats(1e-3, 1e2), st.integers(-24, 24), st.data())
def test_every_norm_steps_to_the_edge_of_its_ball_projects_into_it_and_climbs_as_it_says(
    gradient: Tensor, other: Tensor, mask: Tensor, radius: float, scale: int, data: st.DataObject
) -> None:
    norm = data.draw(st.sampled_from(["l2", "linf", "linf_scaled"]))
    scope = data.draw(st.sampled_from(list(AXES)))
    gradient, other = masked(gradient, mask), masked(other, mask)
    axes, real = AXES[scope], plain_size(gradient, norm=norm, scope=scope) > 0
    torch.testing.assert_close(
        size(gradient, norm=norm, scope=scope), plain_size(gradient, norm=norm, scope=scope)
    )
    step = steepest(gradient * 10.0**scale, norm=norm, scope=scope) * radius
    edge = plain_size(step, norm=norm, scope=scope)
    torch.testing.assert_close(edge, real.double() * radius)
    assert not step[~mask].any()
    # However large the gradient is, the step is the same one.
    torch.testing.assert_close(step, steepest(gradient, norm=norm, scope=scope) * radius)
    inside = project(other, radius, norm=norm, scope=scope)
    assert (plain_size(inside, norm=norm, scope=scope) <= radius * (1 + 1e-9)).all()
    torch.testing.assert_close(project(inside, radius, norm=norm, scope=scope), inside)
    whole = plain_size(other, norm=norm, scope=scope) <= radius
    assert torch.equal(torch.where(whole, inside, 0.0), torch.where(whole, other, 0.0))
    # The nearest point of the ball is nearer than any other, such as one on its edge.
    apart = [(point - other).square().sum(axes) for point in (inside, step)]
    assert (apart[0] <= apart[1] * (1 + 1e-9)).all()
    climbed = [(gradient * point).sum(axes) for point in (step, inside)]
    if norm == "linf_scaled":
        torch.testing.assert_close(climbed[0] > 0, real.squeeze(axes))
        assert torch.equal(project(step, radius, norm="linf", scope=scope), step)
    else:
        assert (climbed[0] >= climbed[1] - 1e-9 * climbed[0].abs()).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_projections_by_hand(dtype: torch.dtype) -> None:
    delta = torch.tensor([[[3.0, 0.5], [-4.0, 0.0]]], dtype=dtype)
    for norm in ("linf", "linf_scaled"):
        result = project(delta, 2.0, norm=norm)
        assert result.tolist() == [[[2.0, 0.5], [-2.0, 0.0]]]
        assert result.dtype == torch.promote_types(dtype, torch.float32)
    inside = torch.tensor([[[3.0, 0.0], [-4.0, 0.0]]], dtype=dtype)
    assert project(inside, 5.0, norm="l2").tolist() == inside.tolist()
    assert project(inside, 2.5, norm="l2").tolist() == [[[1.5, 0.0], [-2.0, 0.0]]]
    # Without a scope the whole example shares the budget.
    assert size(inside, norm="l2").flatten().tolist() == [5.0]


def test_an_example_with_a_zero_gradient_has_norm_0_and_is_not_moved() -> None:
    nothing = torch.zeros(1, 2, 2)
    assert size(nothing, norm="l2").item() == 0.0
    assert not steepest(nothing, norm="l2").any()


def test_one_channel_has_the_middle_rank() -> None:
    ranks = within_example_rank(torch.tensor([[3.0], [-1.0]], dtype=torch.float64))
    assert ranks.tolist() == [[0.5], [0.5]]
    assert ranks.dtype == torch.float32


@pytest.mark.parametrize("norm", ["l2", "linf", "linf_scaled"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_zero_or_non_finite_gradient_has_direction_0(bad: float, norm: str) -> None:
    gradient = VALUES.clone()
    gradient[0] = 0
    gradient[1, 0, 0] = bad
    assert not steepest(gradient, norm=norm).any()


def test_norms_are_taken_in_at_least_single_precision() -> None:
    half = VALUES.to(torch.bfloat16).requires_grad_()
    assert masked(half, torch.ones(2, 2, dtype=torch.bool)).dtype == torch.float32
    assert not masked(half, torch.ones(2, 2, dtype=torch.bool)).requires_grad
    assert steepest(half.detach(), norm="l2").dtype == torch.float32
    assert project(VALUES.double(), 1.0, norm="l2").dtype == torch.float64
    # The squares of such entries are 0 in fp32.
    tiny = torch.full((1, 1, 4), 1e-25)
    torch.testing.assert_close(steepest(tiny, norm="l2"), torch.full((1, 1, 4), 0.5))


def test_the_matrix_s_gradient_is_the_sum_over_a_word_s_occurrences() -> None:
    matrix = torch.randn(5, 2, requires_grad=True)
    ids = torch.tensor([[1, 2], [1, 1]])
    (matrix[ids] * VALUES).sum().backward()
    looked_up, size = vocabulary_gradient(VALUES, ids, vocabulary=5)
    torch.testing.assert_close(looked_up, matrix.grad[ids])
    torch.testing.assert_close(size, matrix.grad.norm())


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 8.0]), min_size=2, max_size=12))
def test_a_rank_counts_smaller_channels_and_half_of_the_equal_ones(
    values: list[float],
) -> None:
    result = within_example_rank(torch.tensor([values]))[0].tolist()
    for value, rank in zip(values, result, strict=True):
        smaller = sum(other < value for other in values)
        equal = sum(other == value for other in values) - 1
        assert rank == pytest.approx((smaller + equal / 2) / (len(values) - 1))
