from __future__ import annotations

import torch

from temper.forward import Perturbation
from temper.models.network import Network
from temper.types import Batch
from tests.methods.tiny import rows, tiny_network


def probed(*lengths: int) -> tuple[Network, Batch]:
    network, batch = Network(tiny_network(), special_ids=(1, 2)), Batch.of(rows(*lengths))
    network.probe(batch)
    return network, batch


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
