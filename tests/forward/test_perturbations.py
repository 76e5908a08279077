from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from temper.forward import Perturbation
from temper.models.network import Network
from temper.types import Batch
from tests.methods.tiny import rows, tiny_network


def probed(*lengths: int) -> tuple[Network, Batch]:
    network, batch = Network(tiny_network(), special_ids=(1, 2)), Batch.of(rows(*lengths))
    network.probe(batch)
    return network, batch


@given(
    st.lists(st.integers(2, 6), min_size=1, max_size=4),
    st.floats(1e-3, 3.0),
    st.booleans(),
    st.integers(1, 4),
    st.floats(0.1, 2.0),
)
def test_however_often_it_steps_delta_stays_in_its_budget_and_off_the_padding(
    lengths: list[int], epsilon: float, relative: bool, steps: int, step_size: float
) -> None:
    network, batch = probed(*lengths)
    attack = Perturbation(epsilon, relative=relative, steps=steps, step_size=step_size)
    embeddings = network.embeddings(batch)
    draws = torch.Generator().manual_seed(0)
    delta = None
    for _ in range(steps):
        gradient = torch.randn(embeddings.shape, generator=draws, dtype=torch.float64)
        if delta is None:
            delta = attack.first(gradient, embeddings, network, batch)
        else:
            delta = attack.further(delta, gradient, embeddings, network, batch)
    assert not delta[~batch.mask].any()
    for row, length in enumerate(lengths):
        size = delta[row].norm().item()
        budget = epsilon * (embeddings[row, :length].norm().item() if relative else 1.0)
        assert size <= budget * (1 + 1e-9)
        if steps == 1:
            assert size == pytest.approx(budget)


def test_a_further_step_carries_no_graph() -> None:
    network, batch = probed(5, 3)
    attack = Perturbation(0.1, steps=3)
    zero = attack.zeros(network, batch)
    assert zero.requires_grad
    assert not zero.any()
    embeddings = network.embeddings(batch)
    delta = attack.first(torch.ones_like(zero), embeddings, network, batch).requires_grad_()
    assert not attack.further(
        delta, torch.ones_like(zero), embeddings, network, batch
    ).requires_grad


def test_special_tokens_can_be_spared() -> None:
    network, batch = probed(5, 3)
    attack = Perturbation(0.1, special_tokens=False)
    gradient = torch.ones(2, 5, 4, dtype=torch.float64)
    delta = attack.first(gradient, network.embeddings(batch), network, batch)
    moved = delta.abs().sum(-1) > 0
    assert moved.tolist() == [[False, True, True, True, False], [False, True] + [False] * 3]
    torch.testing.assert_close(
        delta.flatten(1).norm(dim=1), torch.full((2,), 0.1, dtype=torch.float64)
    )


def test_on_the_matrix_every_occurrence_of_a_word_moves_alike() -> None:
    network = Network(tiny_network())
    ids = torch.tensor([[5, 6, 5], [6, 5, 0]])
    batch = Batch({"input_ids": ids, "attention_mask": (ids > 0).long()})
    network.probe(batch)
    attack = Perturbation(2.0, scope="matrix")
    gradient = torch.randn(2, 3, 4, dtype=torch.float64)
    delta = attack.first(gradient, network.embeddings(batch), network, batch)
    five = gradient[0, 0] + gradient[0, 2] + gradient[1, 1]
    six = gradient[0, 1] + gradient[1, 0]
    size = torch.cat([five, six]).norm()
    torch.testing.assert_close(delta[0, 0], 2 * five / size)
    assert torch.equal(delta[0, 0], delta[0, 2])
    assert torch.equal(delta[0, 0], delta[1, 1])
    torch.testing.assert_close(delta[1, 0], 2 * six / size)
    assert not delta[1, 2].any()
    assert not attack.first(0 * gradient, network.embeddings(batch), network, batch).any()


def test_a_perturbation_has_the_model_s_precision_and_at_least_single() -> None:
    network, batch = probed(5, 3)
    assert Perturbation(0.1).zeros(network, batch).dtype == torch.float64
    network = Network(tiny_network().to(torch.bfloat16))
    assert Perturbation(0.1).zeros(network, batch).dtype == torch.float32
