from __future__ import annotations

from typing import Literal

import pytest
import torch

from temper.forward import Noise, StepContext
from temper.forward.perturbations import (
    NoiseLaw,
    NoiseSize,
    relative_size,
    zeros,
)
from temper.methods.at import AT
from temper.methods.r_at import RAT
from temper.models.network import Network
from temper.seeding import Streams
from temper.types import Batch, Step
from tests.methods.tiny import rows, tiny_network


def step_of(network: Network, batch: Batch) -> StepContext:
    return StepContext(network, batch, {}, Step(), Streams(0))


def probed(*lengths: int) -> tuple[Network, Batch]:
    network, batch = Network(tiny_network(), special_ids=(1, 2)), Batch.of(rows(*lengths))
    network.probe(batch)
    return network, batch


def test_a_second_attack_step_is_detached_from_the_graph() -> None:
    network, batch = probed(5, 3)
    attack, zero = AT(epsilon=0.1, relative=False), zeros(network, batch)
    assert zero.requires_grad
    assert not zero.any()
    embeddings = network.embeddings(batch)
    gradient, step = torch.ones_like(zero), step_of(network, batch)
    delta = attack.attack_step(step, gradient, embeddings).requires_grad_()
    assert not attack.projected_step(step, delta, gradient, embeddings, fraction=0.5).requires_grad


def test_a_perturbation_has_the_model_s_precision_and_at_least_single() -> None:
    network, batch = probed(5, 3)
    assert zeros(network, batch).dtype == torch.float64
    network = Network(tiny_network().to(torch.bfloat16))
    assert zeros(network, batch).dtype == torch.float32


def test_a_step_of_the_embedding_matrix_uses_the_whole_budget() -> None:
    """Every occurrence of a word moves by its row of ``epsilon * G / ||G||_F``."""
    network, batch = probed(5, 3)
    # Padding may have the id of a word.
    batch.inputs["input_ids"][~batch.mask] = batch.inputs["input_ids"][0, 1]
    attack = RAT(epsilon=0.3, relative=False, attack_scope="matrix")
    gradient = torch.randn_like(zeros(network, batch))
    words = network.embeddings(batch)
    delta = attack.delta(step_of(network, batch), gradient, words)
    matrix = torch.zeros(network.vocabulary, gradient.shape[-1], dtype=gradient.dtype)
    for word, entry, real in zip(
        batch.inputs["input_ids"].flatten(),
        gradient.flatten(0, 1),
        batch.mask.flatten(),
        strict=True,
    ):
        matrix[word] += entry * real
    step = 0.3 * matrix / matrix.norm()
    expected = step[batch.inputs["input_ids"]] * batch.mask.unsqueeze(-1)
    torch.testing.assert_close(delta, expected)


def test_a_relative_size_is_a_fraction_of_the_embedding_norms() -> None:
    network, batch = probed(5, 3)
    words = 1e-3 * network.embeddings(batch) * batch.mask.unsqueeze(-1)
    for fraction in (0.25, 0.5):
        result = relative_size(fraction * words, words, batch, network)
        assert result.item() == pytest.approx(fraction)
        assert network.first_norms is not None
        moved, unmoved = network.first_norms
        assert float(moved / unmoved) == pytest.approx(0.25)


@pytest.mark.parametrize("scope", ["example", "matrix"])
@pytest.mark.parametrize("value", [0.0, float("inf"), float("nan")])
def test_a_zero_or_non_finite_gradient_gives_a_zero_perturbation(
    value: float, scope: Literal["example", "matrix"]
) -> None:
    network, batch = probed(5, 3)
    attack = RAT(epsilon=0.3, relative=False, attack_scope=scope)
    words = network.embeddings(batch)
    assert not attack.delta(step_of(network, batch), torch.full_like(words, value), words).any()


@pytest.mark.parametrize("law", ["uniform", "normal", "positive"])
def test_noise_depends_only_on_its_seed(law: NoiseLaw) -> None:
    network, batch = probed(5, 3)
    noise = Noise(0.1, law=law)
    first = noise.draw(network, batch, seed=1)
    assert not torch.equal(first, noise.draw(network, batch, seed=2))
    torch.rand(7)
    state = torch.get_rng_state()
    assert torch.equal(first, noise.draw(network, batch, seed=1))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("law", "mean", "deviation", "least"),
    [
        ("uniform", 0.0, 1 / 3**0.5, -1.0),
        ("normal", 0.0, 1.0, -9.0),
        ("positive", 0.5, 1 / 12**0.5, 0.0),
    ],
)
@pytest.mark.parametrize("per", ["entry", "length"])
def test_noise_has_the_moments_of_its_law_over_real_tokens(
    law: NoiseLaw, mean: float, deviation: float, least: float, per: NoiseSize
) -> None:
    network, inputs = Network(tiny_network(width=400), special_ids=(1, 2)), rows(9, 4)
    # One real token is the fewest.
    inputs["attention_mask"][1, 1:] = 0
    batch = Batch.of(inputs)
    network.probe(batch)
    drawn = Noise(0.2, law=law, per=per).draw(network, batch, seed=3)
    for row, length in enumerate((9, 1)):
        size = 0.2 if per == "entry" else 0.2 / (length * 400) ** 0.5
        real = drawn[row, :length].flatten() / size
        # Of n draws the mean has a standard error of deviation / sqrt n.
        assert real.mean().item() == pytest.approx(mean, abs=5 * deviation / len(real) ** 0.5)
        assert real.std().item() == pytest.approx(deviation, rel=0.1)
        assert least <= real.min().item() < least + 0.01 or law == "normal"
        assert (real.abs().max().item() <= 1) == (law != "normal")
        assert not drawn[row, length:].any()
