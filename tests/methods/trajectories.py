"""Twenty steps of a tiny BERT under each method, and the command that records their losses.

    PYTHONPATH=src:. python -m tests.methods.trajectories [METHOD ...]

Without names it records every method. Record only intended changes of numbers, and list them in
CHANGELOG.md under *Results change*.

The losses are the same on every CPU, because they do not depend on how sums are rounded:

- Everything is in double precision. CPUs sum in different orders, which changes a value by about
  1e-16 of itself per operation, and by less than 1e-12 over twenty steps (`NUDGE`).
- A selective update compares gradients in single precision. If an entry is rounded the other way,
  it changes by 2^-24 = 6e-8 of itself, which `BOUND` allows.
- No gradient is rounding error alone: the biases of the keys, which do not change the softmax, are
  frozen. Otherwise they would be 0 on one CPU and 1e-18 on another, and change every rank.
- Dropout draws uniform numbers, because `bernoulli_` may use a library of the CPU's vendor. Weights
  are drawn in double precision, because normal numbers in fp32 depend on the vector width.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertForSequenceClassification

from temper import Stepper
from temper.methods import configure, names
from temper.training.config import wants_unlabeled
from tests.methods.tiny import rows, tiny_bert

RECORDED = Path(__file__).with_name("trajectories.json")
STEPS = 20
NUDGE = 1e-12
BOUND = 1e-7
# A penalty as steep as the task makes this network's course so rough that rounding decides it.
STEEP = ("jacobian", "cross_holder", "jachess", "jachess_unlabeled")
SETTINGS = {name: {"strength": {"ratio": 0.1}} for name in STEEP}


class UniformDropout(TorchDispatchMode):
    """Draw what `bernoulli_` would from uniform numbers, which are the same on every processor."""

    drawn = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.ops.aten.bernoulli_.float:
            self.drawn += 1
            values, kept = args[0], args[1] if len(args) > 1 else 0.5
            return values.copy_(torch.rand(values.shape, dtype=torch.float64) < kept)
        if "bernoulli" in str(function) or "native_dropout" in str(function):
            raise AssertionError(f"{function} draws differently on other processors.")
        return function(*args, **(kwargs or {}))


def double_bert() -> BertForSequenceClassification:
    """Return a BERT in double precision whose every trained weight has a gradient of its own."""
    model = tiny_bert().double()
    draws = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, 0.4, generator=draws)
            weight.requires_grad_(not name.endswith("attention.self.key.bias"))
    return model


def losses_of(name: str, *, steps: int = STEPS, nudge: float = 0.0) -> list[float]:
    """Return the total loss of each of the first steps.

    Args:
        name: The method.
        steps: How many of the recorded steps to take.
        nudge: What every weight is moved by before the first step, as a fraction of itself.
    """
    model = double_bert()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1 + nudge)
    with UniformDropout():
        return _course(model, name, steps)


def _course(model: BertForSequenceClassification, name: str, steps: int) -> list[float]:
    stepper = Stepper(model, configure(name, SETTINGS.get(name, {})), seed=1, total=STEPS)
    stepper.prepare([rows(6, 4, 5, 3)])
    stepper.begin_epoch(0)
    # SGD: Adam would blow up the rounding of gradients that are 0.
    optimizer = torch.optim.SGD(
        [weight for weight in model.parameters() if weight.requires_grad], lr=0.02, momentum=0.5
    )
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        batch = rows(6, 4, 5, 3, seed=step % 4)
        if step % 2 and wants_unlabeled(stepper.method):
            del batch["labels"]
        losses.append(stepper.backward(batch)["loss"])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        stepper.step(optimizer)
    return losses


def record(*wanted: str) -> None:
    """Write the losses of these methods, or of every one; those of others are kept."""
    known = json.loads(RECORDED.read_text(encoding="utf-8")) if wanted else {}
    known |= {name: [round(loss, 12) for loss in losses_of(name)] for name in wanted or names()}
    result = {name: known[name] for name in names() if name in known}
    RECORDED.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    record(*sys.argv[1:])
