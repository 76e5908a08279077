"""Count how many forward passes a method's step is worth, on the model that it will train."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from temper.errors import TemperError
from temper.methods import Method
from temper.methods.soup import members_of
from temper.models.modes import in_mode, quiet
from temper.seeding import seeded
from temper.training.stepper import Stepper

PLAIN: Final = 3.0
"""Cost of a plain fine-tuning step in forward passes: one, and two for the backward pass."""

STEPS = 1000
"""Length of the assumed run. Its last step is counted: phases of only the head have ended."""


def passes_of(model: nn.Module, method: Method, batch: Mapping[str, Tensor]) -> float | None:
    """Return the mean cost of a method's step in forward passes (F); plain fine-tuning costs 3F.

    A step is run on a few rows, and its multiplications are compared with those of a plain
    fine-tuning step. The model and the global generator are then as before. Only matrix products
    and convolutions are counted, not for example the draw of a mask. The result is None if the
    method cannot be run on these rows, or the weights are quantized.
    """
    # PyTorch does not count the products of bitsandbytes.
    if getattr(model, "is_quantized", False):
        return None
    try:
        device = next(model.parameters()).device
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        # The model's modes and the random states are restored, and training repeats any warning.
        with quiet(), seeded(0, device), in_mode(model, training=True):
            plain = _products(model, "plain", batch, [STEPS - 1])
            period = max(int(getattr(member, "every", 1)) for member in method.composed())
            # One step that is due and one that is not represent the whole cycle.
            due = period * (STEPS - 1)
            numbers = [due] if period == 1 else [due, due + 1]
            counts = _products(model, method, batch, numbers)
    except TemperError:
        # Training meets the same error, with the rows and the step that it belongs to.
        return None
    finally:
        model.zero_grad()
    if not plain[0]:
        return None
    return PLAIN * (counts[0] + (period - 1) * counts[-1]) / (period * plain[0])


def cost_in_words(name: str, method: Method, passes: float) -> list[str]:
    """Return the cost of a method relative to plain fine-tuning; empty if it costs the same."""
    # Mixout masks the weights.
    masks = not method.rule.conflicts.isdisjoint({"mask", "weights"})
    members = members_of(method.rule)
    if abs(passes - PLAIN) < 0.05 and not masks and members == 1:
        return []
    mask = ", plus its mask" if masks else ""
    parts = f"{round(passes, 1):g} vs. {PLAIN:g} forward-pass equivalents per step{mask}"
    if members > 1:
        parts += f"; {members} members"
    return [f"{name} costs about {members * passes / PLAIN:.1f}x plain fine-tuning ({parts})."]


def _products(
    model: nn.Module, method: Method | str, batch: Mapping[str, Tensor], numbers: list[int]
) -> list[int]:
    stepper = Stepper(model, method, total=max(numbers) + 1)
    # A step in mid-run: a method that changes weights when a run begins does not do so here.
    stepper.number = numbers[0]
    result = []
    try:
        stepper.prepare([batch])
        stepper.begin_epoch(0)
        for stepper.number in numbers:
            # Passes that a network or a method makes once do not count as a step's cost.
            stepper.backward(batch)
            stepper.discard()
            with FlopCounterMode(display=False) as counter:
                stepper.backward(batch)
            stepper.discard()
            result.append(counter.get_total_flops())
    finally:
        stepper.remove_hooks()
    return result
