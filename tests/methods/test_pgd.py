"""PGD against a loop over its steps, the law of its budget and start, its settings."""

from __future__ import annotations

import math

import pytest
import torch

from temper import Stepper
from temper.methods import configure
from tests.methods import reference
from tests.methods.perturbed import recorded_deltas
from tests.methods.tiny import rows, tiny_network
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
        delta = reference.climb(means[-1], point, around, reference.geometry(geometry), share=0.6)
    compare(0.7 * means[-1], weights, loss, grads)


def test_a_random_start_fills_the_budget_as_far_as_uniform_noise_does() -> None:
    batch = rows(6, 3)
    for norm in ("l2", "linf_scaled"):
        settings = {"epsilon": 0.4, "relative": False, "norm": norm, "random_start": True}
        stepper = Stepper(tiny_network(width=64), configure("pgd", settings))
        with recorded_deltas() as deltas:
            stepper.backward(batch)
        for start in deltas[0]:
            # The mean square of U(-1, 1) is 1/3.
            if norm == "l2":
                assert float(start.norm()) == pytest.approx(0.4 / math.sqrt(3), rel=0.1)
            else:
                assert 0.95 * 0.4 < float(start.abs().max()) <= 0.4
