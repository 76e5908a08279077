"""Cautious updates against a loop of the paper's Algorithm 1 in double precision."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from temper import Stepper
from temper.errors import SettingError
from temper.methods.cautious import Cautious
from temper.testing import check_method
from tests.methods.tiny import TinyNetwork, rows, tiny_bert, tiny_network

STEPS, RATE, DECAY, EPS = 4, 0.02, 0.1, 1e-30
BETAS = (0.9, 0.98)


def gradients(weights: dict[str, Tensor], model: TinyNetwork, seed: int) -> dict[str, Tensor]:
    batch = rows(5, 3, 6, seed=seed)
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    live = {name: value.clone().requires_grad_() for name, value in weights.items()}
    loss = cross_entropy(functional_call(model, live, kwargs=inputs), batch["labels"])
    return dict(zip(live, torch.autograd.grad(loss, list(live.values())), strict=True))


def algorithm_1(model: TinyNetwork) -> list[dict[str, Tensor]]:
    """Return the weights after each step of C-AdamW, entry by entry as printed."""
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    first = {name: torch.zeros_like(value) for name, value in weights.items()}
    second = {name: torch.zeros_like(value) for name, value in weights.items()}
    seen = []
    for t in range(1, STEPS + 1):
        for name, g in gradients(weights, model, t).items():
            first[name] = BETAS[0] * first[name] + (1 - BETAS[0]) * g
            second[name] = BETAS[1] * second[name] + (1 - BETAS[1]) * g * g
            corrected = first[name] / (1 - BETAS[0] ** t)
            u = corrected / ((second[name] / (1 - BETAS[1] ** t)).sqrt() + EPS)
            kept, counted = 0, 0
            for entry, slope in zip(u.flatten().tolist(), g.flatten().tolist(), strict=True):
                kept += entry * slope > 0
                counted += slope != 0
            scale = 1 / max(1e-3, kept / max(1, counted))
            agreed = torch.where(u * g > 0, u * scale, torch.zeros_like(u))
            weights[name] = weights[name] * (1 - RATE * DECAY) - RATE * agreed
        seen.append({name: value.clone() for name, value in weights.items()})
    return seen


def trained(method: Any, optimizer_of: Any, model: TinyNetwork) -> list[dict[str, Tensor]]:
    stepper = Stepper(model, method, seed=3, total=STEPS)
    optimizer, seen = optimizer_of(model.parameters()), []
    for t in range(1, STEPS + 1):
        optimizer.zero_grad()
        stepper.backward(rows(5, 3, 6, seed=t))
        stepper.step(optimizer)
        seen.append({name: p.detach().clone() for name, p in model.named_parameters()})
    return seen


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=RATE, betas=BETAS, eps=EPS, weight_decay=DECAY)


def test_each_step_is_that_of_algorithm_1_under_adamw() -> None:
    expected = algorithm_1(tiny_network(rate=0.0))
    result = trained("cautious", adamw, tiny_network(rate=0.0))
    plain = trained("plain", adamw, tiny_network(rate=0.0))
    for step, (ours, theirs) in enumerate(zip(result, expected, strict=True)):
        for name, value in theirs.items():
            torch.testing.assert_close(
                ours[name], value, rtol=1e-9, atol=1e-12, msg=f"{step} {name}"
            )
    # The first step of Adam points along the gradient; later ones do not everywhere.
    assert any(not torch.allclose(result[-1][name], plain[-1][name]) for name in plain[-1])


def test_a_step_along_the_gradient_is_not_masked() -> None:
    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=RATE)

    result = trained("cautious", sgd, tiny_network(rate=0.0))
    plain = trained("plain", sgd, tiny_network(rate=0.0))
    # Unused rows of the embeddings have no gradient and must not lengthen the others' step.
    for name, value in plain[-1].items():
        torch.testing.assert_close(result[-1][name], value, rtol=1e-9, atol=1e-12)


def test_the_logged_fraction_is_that_of_the_entries_with_a_gradient() -> None:
    model = tiny_network(rate=0.0)
    stepper, optimizer = Stepper(model, "cautious"), adamw(model.parameters())
    for seed in (1, 2):
        optimizer.zero_grad()
        stepper.backward(rows(5, 3, seed=seed))
        stepper.step(optimizer)
        kept = stepper.diagnostics()["cautious/kept"]
        assert kept == 1.0 if seed == 1 else 0 < kept < 1


@pytest.mark.parametrize("floor", [0.0, -0.1, 1.5, math.inf])
def test_a_floor_out_of_bounds_raises_an_error(floor: float) -> None:
    with pytest.raises(SettingError, match="floor"):
        Cautious(floor=floor)


def test_cautious_passes_all_method_laws() -> None:
    check_method("cautious", draws_by_row=True)


def test_a_step_skipped_by_the_loss_scaler_changes_no_weight() -> None:
    model = tiny_bert()
    stepper, optimizer = Stepper(model, "cautious"), adamw(model.parameters())
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    stepper.backward(rows(5, 3))
    stepper.before_optimizer(optimizer)
    stepper.after_optimizer(skipped=True)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
