"""Twenty steps of a tiny BERT under each method, and the command that records their losses anew.

    PYTHONPATH=src:. python -m tests.methods.trajectories

Record only when a change of the numbers is meant; CHANGELOG.md then says so under *Results change*.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from temper import Stepper
from temper.methods import configure, names
from temper.training.checks import wants_unlabelled
from tests.methods.tiny import rows, tiny_bert

RECORDED = Path(__file__).with_name("trajectories.json")
STEPS = 20
# A penalty as steep as the task makes this network's course so rough that rounding decides it.
STEEP = ("jacobian", "cross_holder", "jachess", "jachess_unlabeled")
SETTINGS = {name: {"gradient_ratio": 0.1} for name in STEEP}


def losses_of(name: str) -> list[float]:
    """Return the total loss of each step."""
    model = tiny_bert()
    stepper = Stepper(model, configure(name, SETTINGS.get(name, {})), seed=1, total=STEPS)
    stepper.prepare([rows(6, 4, 5, 3)])
    stepper.begin_epoch(0)
    # SGD: Adam would blow up the rounding of gradients that are 0.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        batch = rows(6, 4, 5, 3, seed=step % 4)
        if step % 2 and wants_unlabelled(stepper.method):
            del batch["labels"]
        losses.append(stepper.backward(batch)["loss"])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        stepper.step(optimizer)
    return losses


def record() -> None:
    """Write the losses of every method."""
    torch.set_num_threads(1)
    found = {name: [round(loss, 6) for loss in losses_of(name)] for name in names()}
    RECORDED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    record()
