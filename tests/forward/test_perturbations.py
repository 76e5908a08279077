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


def test_a_perturbation_has_the_model_s_precision_and_at_least_single() -> None:
    network, batch = probed(5, 3)
    assert Perturbation(0.1).zeros(network, batch).dtype == torch.float64
    network = Network(tiny_network().to(torch.bfloat16))
    assert Perturbation(0.1).zeros(network, batch).dtype == torch.float32
