"""FreeLB against a loop over its passes: its projection, its random start, its settings."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from temper import Stepper
from temper.methods import configure
from temper.types import Batch, Step
from tests.methods import reference
from tests.methods.perturbed import recorded_deltas
from tests.methods.tiny import rows, tiny_network
from tests.methods.weights import compare, leaves, ours, two_batches

FOUND = {
    "clean start": {"passes": 3, "step_size": 0.3},
    "absolute": {"passes": 3, "step_size": 0.3, "init": 0.5, "relative": False},
    "relative": {"passes": 4, "step_size": 0.2, "init": 0.3, "max_norm": 0.25},
    "ball": {"passes": 3, "step_size": 0.4, "init": 0.9, "max_norm": 0.5, "relative": False},
    "spared": {"passes": 2, "step_size": 0.3, "init": 0.4, "special_tokens": False},
}


def climbed(
    weights: reference.Weights,
    batches: Sequence[dict[str, Tensor]],
    drops: reference.Drops,
    starts: Sequence[Tensor],
    settings: dict[str, Any],
    *,
    weight: float,
) -> tuple[Tensor, list[Tensor]]:
    """Write Algorithm 1 as a loop: the mean loss over K passes, and every delta on the way."""
    passes, count = settings["passes"], sum(len(batch["labels"]) for batch in batches)
    total, deltas = torch.zeros((), dtype=torch.float64), []
    for index, batch in enumerate(batches):
        around = reference.surroundings(
            weights, batch, drops, special_tokens=settings.get("special_tokens", True)
        )
        relative = settings.get("relative", True)
        delta = starts[index]
        assert delta[around[1]].any() == bool(settings.get("init"))
        assert not delta[~around[1]].any()
        for k in range(passes):
            point = delta.clone().requires_grad_()
            deltas.append(delta)
            output = reference.forward(weights, batch, drops, call=index * passes + k, delta=point)
            mean = reference.row_losses(output, batch["labels"], None).sum() / count
            total = total + weight * mean / passes
            (gradient,) = torch.autograd.grad(mean, point, retain_graph=True)
            delta = delta + reference.attack(
                gradient, *around, epsilon=settings["step_size"], relative=relative
            )
            if radius := settings.get("max_norm"):
                delta = reference.ball(delta, *around, epsilon=radius, relative=relative)
    return total, deltas


@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize("case", FOUND)
def test_freelb_is_the_mean_loss_over_its_passes_up_the_ascent(case: str, regression: bool) -> None:
    batches, settings = two_batches(regression=regression), FOUND[case]
    with recorded_deltas() as deltas:
        loss, grads, drops, network = ours(
            "freelb",
            {**settings, "adversarial_weight": 0.7},
            batches,
            classes=1 if regression else 3,
            special_ids=(1, 2),
        )
    weights = leaves(network)
    starts = deltas[:: settings["passes"]]
    total, expected = climbed(weights, batches, drops, starts, settings, weight=0.7)
    assert len(expected) == len(deltas)
    for result, written in zip(deltas, expected, strict=True):
        torch.testing.assert_close(result, written)
    compare(total, weights, loss, grads)


def test_the_clean_loss_can_be_added() -> None:
    batch = rows(5, 3, 6)
    settings = {"passes": 2, "step_size": 0.3}
    with recorded_deltas() as deltas:
        loss, grads, drops, network = ours("freelb", {**settings, "clean_weight": 0.5}, [batch])
    weights = leaves(network)
    clean = reference.row_losses(
        reference.forward(weights, batch, drops, call=0), batch["labels"], None
    )
    later = {name: calls[1:] for name, calls in drops.items()}
    total, _ = climbed(weights, [batch], later, [deltas[1]], settings, weight=1.0)
    compare(total + 0.5 * clean.mean(), weights, loss, grads)


@pytest.mark.parametrize("relative", [False, True])
def test_the_random_start_is_uniform_with_the_configured_size(relative: bool) -> None:
    lengths = (6, 3)
    batch = rows(*lengths)
    logging.disable(logging.WARNING)
    method = configure("freelb", {"passes": 2, "init": 0.9, "relative": relative})
    logging.disable(logging.NOTSET)
    stepper = Stepper(tiny_network(width=64), method)
    embeddings = stepper.network.embeddings(Batch.of(batch))
    with recorded_deltas() as deltas:
        stepper.backward(batch)
    for row, length in enumerate(lengths):
        own = float(embeddings[row, :length].norm()) if relative else 1.0
        bound = 0.9 * own / math.sqrt(length * 64)
        entries = deltas[0][row, :length].abs()
        assert bound * 0.95 < float(entries.max()) <= bound
        # The mean square of U(-1, 1) is 1/3.
        assert float(deltas[0][row].norm()) == pytest.approx(0.9 * own / math.sqrt(3), rel=0.1)


def test_at_init_0_the_first_pass_is_the_clean_one_and_the_loss_then_rises() -> None:
    stepper = Stepper(tiny_network(rate=0.0), configure("freelb", {"passes": 3}))
    with recorded_deltas() as deltas:
        logs = stepper.backward(rows(5, 3, 6))
    clean = Stepper(tiny_network(rate=0.0)).backward(rows(5, 3, 6))["loss"]
    assert not deltas[0].any()
    assert logs["attack/loss_rise"] > 0
    assert clean < logs["loss/adversarial"] < clean + logs["attack/loss_rise"]
    # Two steps of .0125, nearly in one direction.
    assert logs["attack/relative_size"] == pytest.approx(0.025, rel=0.05)
    assert "loss/task" not in logs


def test_a_loss_scale_does_not_change_the_ascent_and_an_overflow_stops_it() -> None:
    batch, result = Batch.of(rows(5, 3)), []
    for scale in (1.0, 2.0**20, math.inf):
        stepper = Stepper(tiny_network(), configure("freelb", {"passes": 3, "step_size": 0.1}))

        def backward(total: Tensor, scale: float = scale) -> None:
            (total * scale).backward()

        with recorded_deltas() as deltas:
            stepper.run_passes(batch, Step(units=2), backward=backward)
        result.append(deltas)
    for plain, scaled in zip(*result[:2], strict=True):
        torch.testing.assert_close(plain, scaled)
    assert result[0][2].any()
    assert not any(delta.any() for delta in result[2])


def test_a_pass_before_the_last_backward_raises_an_error() -> None:
    stepper = Stepper(tiny_network(), "freelb")
    with pytest.raises(ValueError, match="Run backward on each total"):
        stepper.run_passes(Batch.of(rows(5, 3)), Step(units=2), backward=lambda total: None)


def test_presets_have_the_published_settings_with_all_passes_counted() -> None:
    # Fairseq's adv_steps counts ascents, the script for ALBERT counts passes.
    fairseq = configure("freelb", {"preset": "roberta_large_sst2"})
    assert (fairseq.passes, fairseq.step_size, fairseq.init, fairseq.max_norm) == (3, 0.1, 1.0, 0.6)
    albert = configure("freelb", {"preset": "albert_xxl_sst2"})
    assert (albert.passes, albert.step_size, albert.init, albert.max_norm) == (2, 0.1, 0.6, 0.0)
    assert not fairseq.relative
    assert not albert.relative
