"""PGD against a loop over its steps: its projection, its random start, its settings."""

from __future__ import annotations

import math

import pytest
import torch

from temper import Stepper
from temper.methods import configure
from temper.models.network import Site
from temper.types import Batch
from tests.methods import reference
from tests.methods.perturbed import recorded_deltas
from tests.methods.tiny import recorded_drops, rows, tiny_network
from tests.methods.weights import compare, leaves, ours

GEOMETRIES = {
    "l2": {"epsilon": 0.3, "relative": False},
    "relative": {"epsilon": 0.2},
    "linf_scaled_token": {
        "epsilon": 0.2,
        "relative": False,
        "norm": "linf_scaled",
        "attack_scope": "token",
    },
    "linf": {"epsilon": 0.2, "norm": "linf"},
    "batch": {"epsilon": 0.3, "attack_scope": "batch"},
    "output": {"epsilon": 0.2, "site": "output"},
    "spared": {"epsilon": 0.3, "special_tokens": False},
}


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("random_start", [False, True])
@pytest.mark.parametrize("case", GEOMETRIES)
def test_pgd_is_the_loss_at_the_end_of_its_projected_steps(
    case: str, random_start: bool, steps: int
) -> None:
    geometry, batch = GEOMETRIES[case], rows(5, 3, 6)
    settings = {"step_size": 0.6, "steps": steps, "random_start": random_start}
    with recorded_deltas() as deltas:
        loss, grads, drops, network = ours(
            "pgd",
            {**geometry, **settings, "adversarial_weight": 0.7},
            [batch],
            special_ids=(1, 2),
        )
    for calls in drops.values():
        # The pass that trains drops what the attacked network dropped.
        for call in calls:
            torch.testing.assert_close(call, calls[-1])
    weights = leaves(network)
    site = geometry.get("site", "word")
    around = reference.surroundings(
        weights, batch, drops, site=site, special_tokens=geometry.get("special_tokens", True)
    )
    # A start at the blocks' input looks at it in a pass of its own.
    skipped = int(random_start and site == "output")
    delta, means = deltas[skipped], []
    assert delta.any() == random_start
    for call in range(skipped, skipped + steps + 1):
        torch.testing.assert_close(deltas[call], delta)
        point = delta.clone().requires_grad_()
        output = reference.forward(weights, batch, drops, call=call, delta=point, site=site)
        means.append(reference.row_losses(output, batch["labels"], None).sum() / 3)
        delta = reference.climb(
            means[-1], point, around, reference.geometry(geometry), fraction=0.6
        )
    compare(0.7 * means[-1], weights, loss, grads)


@pytest.mark.parametrize("site", ["word", "output"])
@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("norm", ["l2", "linf_scaled"])
@pytest.mark.parametrize("scope", ["example", "token", "batch"])
def test_a_random_start_has_the_size_of_uniform_noise_in_the_budget(
    scope: str, norm: str, relative: bool, site: Site
) -> None:
    """Uniform on [-r, r], r the budget, for l2 over the root of the entries that share it."""
    batch = rows(28, 14)
    settings = {"norm": norm, "attack_scope": scope, "relative": relative, "site": site}
    method = configure(
        "pgd", {**settings, "epsilon": 0.4, "random_start": True, "special_tokens": False}
    )
    # More tokens than channels.
    stepper = Stepper(tiny_network(width=16), method, special_ids=(1, 2))
    stepper.network.probe(Batch.of(batch))
    with recorded_drops(stepper.network.model) as drops, recorded_deltas() as deltas:
        logs = stepper.backward(batch)
    weights = leaves(stepper.network.model)
    embeddings, movable = reference.surroundings(
        weights, batch, drops, site=site, special_tokens=False
    )
    inside = movable.unsqueeze(-1).expand_as(embeddings).double()
    axes, unit = reference.AXES[scope], torch.ones(())
    if relative:
        unit = (embeddings * inside).abs().amax(axes, keepdim=True)
        if norm == "l2":
            unit = (embeddings * inside).square().sum(axes, keepdim=True).sqrt()
    radius = 0.4 * unit / (inside.sum(axes, keepdim=True).sqrt() if norm == "l2" else 1.0)
    start = deltas[int(relative and site == "output")]
    assert not start[~movable].any()
    fractions = (start / radius)[movable]
    assert 0.95 < float(fractions.abs().max()) <= 1
    # The mean square of U(-1, 1) is 1/3, that of a group of 16 within five standard errors.
    assert float(fractions.square().mean()) == pytest.approx(1 / 3, rel=0.15)
    assert (fractions.square().mean(1) - 1 / 3).abs().max() < 5 * math.sqrt(4 / 45 / 16)
    sizes = [
        float(end.norm() / own[: int(real.sum())].norm())
        for end, own, real in zip(deltas[-1], embeddings, batch["attention_mask"], strict=True)
    ]
    assert logs["attack/relative_size"] == pytest.approx(sum(sizes) / 2)
