"""L2-SP: the gradient equals autograd's, and no other weight moves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from temper import Stepper
from temper.methods import w_cons
from temper.methods.w_cons import Anchor, WCons
from temper.models.network import Parameters
from temper.seeding import Streams
from temper.types import Batch, Step
from tests.methods import reference
from tests.methods.tiny import recorded_drops, rows, tiny_network
from tests.methods.weights import compare, leaves, two_batches


def moved_network(seed: int = 1) -> tuple[nn.Module, Stepper, dict[str, Tensor]]:
    """Return a network away from its start, its stepper, and that start."""
    model = tiny_network()
    stepper = Stepper(model, WCons(weight=0.3), seed=11)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=draws, dtype=p.dtype), alpha=0.5)
    # Probing runs a forward of its own, which must not be taken for one of the method's.
    stepper.network.probe(Batch.of(rows(5, 3)))
    return model, stepper, start


@pytest.mark.parametrize("chunk", [7, 2**18])
def test_the_gradient_is_that_of_the_penalised_loss(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(w_cons, "CHUNK", chunk)
    batches = two_batches()
    model, stepper, start = moved_network()
    with recorded_drops(model) as drops:
        logs = stepper.backward(*batches)
    weights = leaves(model)
    task = sum(
        reference.row_losses(
            reference.forward(weights, batch, drops, call=index), batch["labels"], None
        ).sum()
        for index, batch in enumerate(batches)
    )
    kept = [name for name, value in weights.items() if value.dim() >= 2]
    assert {"head.weight", "words.weight", "layers.0.inner.weight"} <= set(kept)
    assert "head.bias" not in kept
    penalty = sum(((weights[name] - start[name]) ** 2).sum() for name in kept)
    assert logs["loss/anchor"] == pytest.approx(0.3 * penalty.item(), rel=1e-12)
    total = task / 5 + 0.3 * penalty
    compare(total, weights, logs["loss"], stepper.params.gradients())


def regularized(
    rule: Anchor, tensor: Tensor, start: Tensor, gradient: Tensor | None, **step: Any
) -> tuple[Tensor, float]:
    params = Parameters({"w": nn.Parameter(tensor)}, frozenset(), start={"w": start})
    state: dict[str, Any] = {}
    assert rule.regularization_losses(state) == {}
    grads = {} if gradient is None else {"w": gradient}
    result = rule.regularize(grads, params, state, Step(**step), Streams(0))
    return result["w"], float(rule.regularization_losses(state)["anchor"])


@pytest.mark.parametrize(
    ("weight", "tensor", "before", "settings", "after", "pull"),
    [
        # 2 * .5 * (3 - 1) on a gradient of 1; .5 * 2^2.
        (0.5, [[3.0, 1.0]], [[1.0, 1.0]], {}, [[3.0, 1.0]], 2.0),
        # Without a gradient it is pulled too.
        (1.0, [[3.0, 3.0]], None, {}, [[4.0, 4.0]], 8.0),
        # The pull is scaled as the loss is.
        (1.0, [[3.0, 3.0]], [[0.0, 0.0]], {"loss_scale": 8.0}, [[32.0, 32.0]], 8.0),
    ],
)
def test_the_penalty_gradient_equals_hand_computed_values(
    weight: float, tensor: Any, before: Any, settings: dict[str, Any], after: Any, pull: float
) -> None:
    gradient = None if before is None else torch.tensor(before)
    result = regularized(
        Anchor(weight), torch.tensor(tensor), torch.ones(1, 2), gradient, **settings
    )
    assert (result[0].tolist(), result[1]) == (after, pull)


@pytest.mark.parametrize("layout", ["tensor", "gradient"])
def test_transposed_tensors_have_the_same_penalty_gradient(layout: str) -> None:
    draws = torch.Generator().manual_seed(0)
    tensor, start, gradient = (torch.randn(4, 3, generator=draws) for _ in range(3))
    expected = gradient + 2 * (tensor - start)
    if layout == "tensor":
        tensor = tensor.T.contiguous().T
    else:
        gradient = gradient.T.contiguous().T
    result, _ = regularized(Anchor(1.0), tensor, start, gradient)
    torch.testing.assert_close(result, expected)


def test_half_precision_sums_its_squares_in_single() -> None:
    tensor = torch.full((512, 512), 1.0078125, dtype=torch.bfloat16)
    _, value = regularized(Anchor(1.0), tensor, torch.ones_like(tensor), torch.zeros_like(tensor))
    assert value == pytest.approx(512 * 512 * 0.0078125**2, rel=1e-4)
