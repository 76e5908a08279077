"""The penalty's terms as one step of a method makes them, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from temper import Stepper
from temper.methods import configure
from temper.types import Batch, LossTerms, Step


def copied(batch: dict[str, Tensor], times: int) -> dict[str, Tensor]:
    """Repeat every row, so that one step makes many independent draws for it."""
    return {name: tensor.repeat_interleave(times, 0) for name, tensor in batch.items()}


def weighted(stepper: Stepper, weights: Sequence[float]) -> None:
    """Give the layers these weights, as if the norms had been measured."""
    stepper.state["smoothness"]["weights"] = torch.tensor(weights, dtype=torch.float64)


def terms_of(
    model: nn.Module,
    batch: dict[str, Tensor],
    settings: dict[str, Any],
    *,
    name: str = "jachess",
    weights: Sequence[float] | None = None,
    seed: int = 0,
    number: int = 0,
) -> LossTerms:
    """Return the terms of one step with their graph; the model is left without hooks.

    Args:
        model: In training mode.
        batch: As a collator gives it.
        settings: Of the method.
        name: Of the method.
        weights: Of the layers; None leaves them to the method.
        seed: Of the draws.
        number: Of the step.
    """
    stepper = Stepper(model, configure(name, settings), seed=seed)
    if weights is not None:
        weighted(stepper, weights)
    given = Batch.of(batch)
    (found,) = stepper.method.objective.losses(
        stepper.network,
        given,
        stepper.state,
        Step(number, rows=given.size),
        stepper.streams.at(step=number),
    )
    stepper.release()
    return found


def rows_of(*arguments: Any, **settings: Any) -> dict[str, Tensor]:
    """Return the rows [B] of every term by name, detached; arguments as `terms_of`."""
    return {term.name: term.rows.detach() for term in terms_of(*arguments, **settings)}
