"""Label smoothing on numbers worked by hand, against torch, and in compositions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from temper import Stepper
from temper.methods import compose, configure
from tests.methods import reference
from tests.methods.tiny import rows, tiny_network
from tests.methods.weights import compare, leaves, ours, two_batches


def smoothed(scores: Tensor, labels: Tensor, fraction: float) -> Tensor:
    """Write the mean of minus sum_c q_c log p_c over the rows."""
    losses = []
    for row, label in enumerate(labels):
        p = reference.probabilities(scores[row])
        target = [fraction / len(p) + (1 - fraction) * (c == int(label)) for c in range(len(p))]
        losses.append(-sum(q * torch.log(p[c]) for c, q in enumerate(target)))
    return torch.stack(losses)


def test_gradients_are_those_of_the_smoothed_labels_and_torch_agrees() -> None:
    batches = two_batches()
    loss, grads, drops, network = ours("label_smoothing", {"smoothing": 0.2}, batches)
    weights = leaves(network)
    total, of_torch = torch.zeros((), dtype=torch.float64), 0.0
    for index, batch in enumerate(batches):
        output = reference.forward(weights, batch, drops, call=index)
        total = total + smoothed(output, batch["labels"], 0.2).sum() / 5
        plain = nn.functional.cross_entropy(
            output.detach(), batch["labels"], label_smoothing=0.2, reduction="sum"
        )
        of_torch += float(plain) / 5
    compare(total, weights, loss, grads)
    assert loss == pytest.approx(of_torch)


def test_every_task_loss_of_a_composition_is_smoothed() -> None:
    batch = rows(5, 3, 6)
    method = compose(
        configure("r_drop", {"weight": 0.7}), configure("label_smoothing", {"smoothing": 0.2})
    )
    network = tiny_network(rate=0.0)
    logs = Stepper(network, method).backward(batch)
    output = network(batch["input_ids"], batch["attention_mask"])
    expected = smoothed(output.detach(), batch["labels"], 0.2).mean()
    assert logs["loss/task"] == pytest.approx(float(expected))
    attacked = compose(
        configure("freelb", {"passes": 2, "step_size": 1e-9}),
        configure("label_smoothing", {"smoothing": 0.2}),
    )
    logs = Stepper(tiny_network(rate=0.0), attacked).backward(batch)
    assert logs["loss/adversarial"] == pytest.approx(float(expected))
