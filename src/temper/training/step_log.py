"""Log of the steps' losses, kept on the device until it is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from temper.errors import NonFiniteError
from temper.types import Batch, LossTerms, Step

KEPT = ("parts", "sums", "rows", "notes", "counts", "squares", "steps", "total")
"""Attributes of a log that a checkpoint stores."""


class StepLog:
    """Sums of the loss terms since the last log, on the device, so that logging never waits."""

    def __init__(self) -> None:
        self.replaying = False
        self.clear()

    def clear(self) -> None:
        self._parts: dict[str, Tensor] = {}
        self._sums: dict[str, Tensor] = {}
        self._rows: dict[str, float] = {}
        self._notes: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self._squares: dict[str, Tensor] = {}
        self._steps: dict[int, None] = {}
        self._total: Tensor | float = 0.0
        self._fresh: list[tuple[str, Tensor, Tensor | None]] = []

    def add(self, terms: LossTerms, batch: Batch, total: Tensor, step: Step) -> None:
        """Add the loss terms of one backward pass.

        In a pass that a rule repeats at other weights, they are only checked for NaN and infinity.
        """
        for term in terms:
            self._fresh.append((term.name, term.rows.detach(), batch.rows))
        if self.replaying:
            return
        self._total = self._total + total.detach()
        for term in terms:
            rows = term.rows.detach()
            self._parts[term.name] = self._parts.get(term.name, 0) + term.value(step).detach()
            if term.weight != 1 or term.reduction != "mean":
                self._sums[term.name] = self._sums.get(term.name, 0) + rows.sum()
                units = len(rows) * step.units_per_row
                self._rows[term.name] = self._rows.get(term.name, 0) + units
        self._steps[step.number] = None
        for name, square in squared_gradients(terms, step).items():
            self._squares[name] = self._squares.get(name, 0) + square
        for name, value in terms.diagnostics.items():
            self._notes[name] = self._notes.get(name, 0) + value.detach()
            self._counts[name] = self._counts.get(name, 0) + 1

    def add_regularization(self, name: str, value: Tensor) -> None:
        """Add a regularization loss of the update rule; values of the same name are summed."""
        self._parts[name] = self._parts.get(name, 0) + value.detach()
        self._total = self._total + value.detach()

    @property
    def pending(self) -> bool:
        """Whether there are losses that were not checked yet."""
        return bool(self._fresh)

    def finite(self) -> Tensor:
        """Return in one boolean tensor whether every loss since the last check is finite."""
        return torch.stack([torch.isfinite(rows).all() for _, rows, _ in self._fresh]).all()

    def check(self, step: Step) -> None:
        """Raise if a loss since the last check is NaN or infinite, naming step, term and rows."""
        clean = not self.pending or bool(self.finite())
        fresh, self._fresh = self._fresh, []
        if clean:
            return
        for name, rows, ids in fresh:
            bad = torch.nonzero(~torch.isfinite(rows)).flatten()
            if len(bad):
                which = [int(index) for index in (bad if ids is None else ids[bad % len(ids)])]
                kind = "rows" if ids is not None else "indices in the batch"
                raise NonFiniteError(
                    f"The loss term {name!r} is not finite at step {step.number}, {kind} {which}. "
                    "Training stopped before the weights moved; the last checkpoint is intact. "
                    "Lower the learning rate or epsilon, use bf16 instead of fp16, or look at "
                    "those rows.",
                    step=step.number,
                    term=name,
                    rows=which,
                )

    def state_dict(self) -> dict[str, Any]:
        """Return the sums, so that a resumed run continues its logs."""
        return {name: getattr(self, f"_{name}") for name in KEPT}

    def load_state_dict(self, saved: Mapping[str, Any], device: torch.device) -> None:
        self.clear()
        for name in KEPT:
            setattr(self, f"_{name}", moved(saved[name], device))

    def means(self) -> dict[str, float]:
        """Return name -> mean over the steps since the last log.

        The names are ``loss``; ``loss/TERM``, the contribution of a term with its weight and
        reduction, so that these add up to ``loss``; ``unweighted/TERM``, the mean per row of a term
        that has a weight or is summed; the diagnostics; and ``gradient/TERM``, the root mean square
        of the term's gradient norm.
        """
        steps = max(len(self._steps), 1)
        parts = {f"loss/{name}": float(part) / steps for name, part in self._parts.items()}
        plain = {
            f"unweighted/{name}": float(total) / self._rows[name]
            for name, total in self._sums.items()
        }
        notes = {name: float(total) / self._counts[name] for name, total in self._notes.items()}
        gradients = {
            f"gradient/{name}": math.sqrt(float(square) / steps)
            for name, square in self._squares.items()
        }
        return {"loss": float(self._total) / steps, **parts, **plain, **notes, **gradients}


def squared_gradients(terms: LossTerms, step: Step) -> dict[str, Tensor]:
    """Return the squared l2 norm of each weighted term's gradient w.r.t. the logits, by term.

    It runs only through the loss and not through the network, so it costs almost nothing. The norms
    are scalars over the micro-batch; those of a step's micro-batches add.
    """
    result = {}
    for term in terms:
        reached = [item for item in term.logits if item.requires_grad]
        if not reached or not term.rows.requires_grad:
            continue
        grads = torch.autograd.grad(term.value(step), reached, retain_graph=True, allow_unused=True)
        squares = [grad.float().square().sum() for grad in grads if grad is not None]
        if squares:
            result[term.name] = torch.stack(squares).sum() / step.ranks**2
    return result


def moved(value: Any, device: torch.device) -> Any:
    """Move every tensor of nested dicts to a device."""
    if isinstance(value, Tensor):
        # Apple's GPUs have no double precision, so such sums stay on the CPU.
        double = value.dtype == torch.float64 and device.type == "mps"
        return value if double else value.to(device)
    if isinstance(value, dict):
        return {key: moved(item, device) for key, item in value.items()}
    return value
