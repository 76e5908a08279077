"""The penalty's terms as one step of a method makes them, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from temper import Stepper
from temper.methods import configure
from tests.methods.tiny import totals_of


def copied(batch: dict[str, Tensor], times: int) -> dict[str, Tensor]:
    """Repeat every row, so that one step makes many independent draws for it."""
    return {name: tensor.repeat_interleave(times, 0) for name, tensor in batch.items()}


def weighted(stepper: Stepper, weights: Sequence[float]) -> None:
    """Give the layers these weights, as if the norms had been measured."""
    stepper.state["smoothness"]["weights"] = torch.tensor(weights, dtype=torch.float64)


def rows_of(
    model: nn.Module,
    batch: dict[str, Tensor],
    settings: dict[str, Any],
    *,
    name: str = "jachess",
    weights: Sequence[float] | None = None,
) -> dict[str, Tensor]:
    """Return the rows [B] of every term of one step by name, detached.

    Args:
        model: In training mode; it is left without hooks.
        batch: As a collator gives it.
        settings: Of the method.
        name: Of the method.
        weights: Of the layers; None leaves them to the method.
    """
    stepper = Stepper(model, configure(name, settings))
    if weights is not None:
        weighted(stepper, weights)
    state, streams = stepper.state, stepper.streams.at(step=0)
    (terms,) = totals_of(stepper.method, stepper.network, batch, state=state, streams=streams)
    stepper.remove_hooks()
    return {term.name: term.rows.detach() for term in terms}
