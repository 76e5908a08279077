"""What training refuses to begin with, and what it stops at."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from temper.backward.rule import UpdateRule
from temper.errors import NonFiniteError, SettingError
from temper.training.rows import countable
from temper.types import Step


def check_pre_pass(rule: UpdateRule, dataset: Any) -> None:
    """Refuse a rule that looks at all rows before training, where they never end.

    Args:
        rule: The method's update rule.
        dataset: The training rows.

    Raises:
        SettingError: If they are a stream.
    """
    if rule.pre_pass and not countable(dataset):
        raise SettingError(
            "This method measures what matters in a pass over all rows before training and needs a "
            f"dataset with a length, got {type(dataset).__name__}. Use a dataset with a length, or "
            "a method without a pre-pass (of roast and uegr: refresh='step')."
        )


def check_resumable(dataset: Any, *, epoch: float) -> None:
    """Refuse to go on within a later pass over a stream: its rows cannot be skipped again.

    Args:
        dataset: The training rows.
        epoch: Where the checkpoint stands, in passes.

    Raises:
        SettingError: If the dataset is a stream and a pass is over.
    """
    if epoch >= 1 and not countable(dataset):
        raise SettingError(
            f"Training on a stream ({type(dataset).__name__}) can be resumed only within its first "
            f"pass, and this checkpoint stands in pass {int(epoch) + 1}. Use a dataset with a "
            "length."
        )


def check_gradient_norm(norm: float | Tensor, step: Step) -> None:
    """Stop at a gradient that is not finite, before it reaches weights and checkpoints.

    Args:
        norm: Of the whole gradient.
        step: Where training stands.

    Raises:
        NonFiniteError: If it is NaN or infinite; its term is ``gradient`` and it knows no rows.
    """
    if not math.isfinite(norm):
        raise NonFiniteError(
            f"The gradient's norm is {float(norm)} at step {step.number}, though every loss is "
            "finite. Training stopped before the weights moved; the last checkpoint is intact. "
            "Lower the learning rate or epsilon.",
            step=step.number,
            term="gradient",
            rows=[],
        )
