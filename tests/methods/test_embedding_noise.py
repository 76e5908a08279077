"""NEFTune's noise: its scale by length, its mean size, its positions, and training."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from temper import Stepper
from temper.forward import Noise
from temper.methods import configure
from temper.models.network import Network
from temper.types import Batch
from tests.methods import reference
from tests.methods.perturbed import recorded_deltas
from tests.methods.tiny import rows, tiny_network
from tests.methods.weights import compare, leaves, ours, two_batches


def test_the_loss_is_that_of_the_noisy_embeddings() -> None:
    batches = two_batches()
    with recorded_deltas() as deltas:
        loss, grads, drops, network = ours("embedding_noise", {"alpha": 2.0}, batches)
    weights = leaves(network)
    total = torch.zeros((), dtype=torch.float64)
    for index, (batch, noise) in enumerate(zip(batches, deltas, strict=True)):
        assert noise.any()
        output = reference.forward(weights, batch, drops, call=index, delta=noise)
        total = total + reference.row_losses(output, batch["labels"], None).sum() / 5
    assert not torch.equal(deltas[0][:2, :2], deltas[1][:2, :2])
    compare(total, weights, loss, grads)


@given(
    st.lists(st.integers(2, 12), min_size=1, max_size=4),
    st.floats(0.1, 20.0),
    st.integers(0, 2**31),
)
def test_noise_is_bounded_by_alpha_over_the_root_of_length_times_width(
    lengths: list[int], alpha: float, seed: int
) -> None:
    batch = Batch.of(rows(*lengths))
    network = Network(tiny_network(width=32))
    noise = Noise(alpha, per="length").draw(network, batch, seed=seed)
    assert not noise[~batch.mask].any()
    for row, length in enumerate(lengths):
        bound = alpha / math.sqrt(length * 32)
        largest = float(noise[row].abs().max())
        # Of 64 or more entries, all are below 0.8 of the bound about once in a million times.
        assert 0.8 * bound < largest <= bound


def test_the_relative_size_of_the_noise_is_logged() -> None:
    stepper, batch = Stepper(tiny_network(), configure("embedding_noise")), rows(6, 3)
    with recorded_deltas() as deltas:
        logs = stepper.backward(batch)
    embeddings = stepper.network.embeddings(Batch.of(batch))
    fractions = [
        float(deltas[0][row, :length].norm() / embeddings[row, :length].norm())
        for row, length in enumerate((6, 3))
    ]
    assert logs["attack/relative_size"] == pytest.approx(sum(fractions) / 2)
