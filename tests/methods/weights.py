"""Shared by tests of methods that change weights: the loss of a step from the paper, and faults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from temper import Stepper
from temper.methods import Method, configure
from temper.types import Batch
from tests.methods import reference
from tests.methods.tiny import TinyNetwork, recorded_drops, rows, tiny_network

CLOSE = {"rtol": 1e-8, "atol": 1e-10}
SIZES = ((5, 3, 6), (4, 2))
"""Lengths of the rows of two micro-batches, the last one short."""


def two_batches(*, regression: bool = False) -> list[dict[str, Tensor]]:
    """Return a step's micro-batches."""
    return [rows(*size, seed=index, regression=regression) for index, size in enumerate(SIZES)]


def stepper_of(method: Method | Method | str, **settings: Any) -> Stepper:
    """Return a stepper on a double network that was probed already, so that calls can be counted.

    Args:
        method: A method, its settings or its name.
        settings: Of the network, and ``total`` of the Stepper.
    """
    total = settings.pop("total", 0)
    stepper = Stepper(tiny_network(**settings), method, seed=11, total=total)
    stepper.network.probe(Batch.of(two_batches()[0]))
    return stepper


def step_of(
    stepper: Stepper, batches: Sequence[dict[str, Tensor]]
) -> tuple[dict[str, float], dict[str, Tensor], reference.Drops]:
    """Run a step's passes: logs, gradients, and what was dropped, call after call."""
    with recorded_drops(stepper.network.model) as drops:
        logs = stepper.backward(*batches)
    return logs, {name: g.clone() for name, g in stepper.params.gradients().items()}, drops


def leaves(network: nn.Module) -> reference.Weights:
    """Return copies of the weights that gradients are asked of."""
    return {n: p.detach().clone().requires_grad_() for n, p in network.named_parameters()}


def ours(
    name: str,
    settings: dict[str, Any],
    batches: Sequence[dict[str, Tensor]],
    *,
    class_weights: Sequence[float] | None = None,
    classes: int = 3,
    special_ids: Sequence[int] = (),
) -> tuple[float, dict[str, Tensor], reference.Drops, TinyNetwork]:
    """Run a method's forward stage: total, gradients, what was dropped, and the network."""
    network = tiny_network(classes=classes)
    stepper = Stepper(
        network,
        configure(name, settings),
        seed=11,
        class_weights=class_weights,
        special_ids=special_ids,
    )
    # Probing runs a forward of its own, which must not be taken for one of the method's.
    stepper.network.probe(Batch.of(batches[0]))
    with recorded_drops(network) as drops:
        logs = stepper.backward(*batches)
    grads = {key: tensor.clone() for key, tensor in stepper.params.gradients().items()}
    return logs["loss"], grads, drops, network


def compare(total: Tensor, weights: reference.Weights, loss: float, grads: Any) -> None:
    """Compare a step with a total that was written out: its value and every weight's gradient."""
    # The log's total is a Python float made from the same numbers.
    assert loss == pytest.approx(total.item(), rel=1e-9)
    expected = torch.autograd.grad(total, list(weights.values()))
    close(grads, dict(zip(weights, expected, strict=True)))


def expected_loss(
    weights: reference.Weights,
    batches: Sequence[dict[str, Tensor]],
    drops: reference.Drops,
    *,
    class_weights: Sequence[float] | None = None,
) -> Tensor:
    """Return the mean of the task's loss over a step's rows, written out row by row."""
    losses = [
        reference.row_losses(
            reference.forward(weights, batch, drops, call=call), batch["labels"], class_weights
        )
        for call, batch in enumerate(batches)
    ]
    return torch.cat(losses).mean()


def expected_gradient(
    weights: reference.Weights, batches: Sequence[dict[str, Tensor]], drops: reference.Drops
) -> dict[str, Tensor]:
    """Return the gradient of ``expected_loss``."""
    result = torch.autograd.grad(expected_loss(weights, batches, drops), list(weights.values()))
    return dict(zip(weights, result, strict=True))


def close(result: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Compare gradients or weights by name."""
    assert result.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(result[name], value, msg=lambda m, n=name: f"{n}: {m}", **CLOSE)


def copies(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of all weights."""
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Tell whether two sets of weights agree bit for bit."""
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


class PlantedError(Exception):
    """A fault that a test plants."""


def fail_at_call(network: TinyNetwork | nn.Module, number: int) -> list[dict[str, Tensor]]:
    """Make a model raise at its n-th forward, from 1, and note the weights that it saw there."""
    seen: list[dict[str, Tensor]] = []
    calls = []

    def hook(module: nn.Module, *_: Any) -> None:
        calls.append(None)
        if len(calls) == number:
            seen.append(copies(module))
            raise PlantedError

    network.register_forward_hook(hook)
    return seen
