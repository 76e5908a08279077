"""Losses written from the papers' equations, row by row in double precision, without our code.

Only the dropout masks are those of the tested pass (tests/methods/tiny.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Weights = dict[str, Tensor]
Drops = dict[str, list[Tensor]]
Logits = Callable[[Weights, int, Tensor | None], Tensor]
"""From weights, pass number and delta to logits [B, C]."""


def forward(
    weights: Weights,
    batch: dict[str, Tensor],
    drops: Drops,
    *,
    call: int,
    rows: slice = slice(None),
    delta: Tensor | None = None,
    site: str = "word",
) -> Tensor:
    """Compute TinyNetwork's logits for the rows of one pass, example by example."""
    outputs = []
    multipliers = {name: calls[call][rows] for name, calls in drops.items()}
    for row in range(len(batch["labels"])):
        length = int(batch["attention_mask"][row].sum())
        ids = batch["input_ids"][row, :length]
        hidden = weights["words.weight"][ids]
        if delta is not None and site == "word":
            hidden = hidden + delta[row, :length]
        hidden = hidden * multipliers["after_words"][row, :length]
        if delta is not None and site == "output":
            hidden = hidden + delta[row, :length]
        for layer in ("layers.0", "layers.1"):
            inner = hidden @ weights[f"{layer}.inner.weight"].T + weights[f"{layer}.inner.bias"]
            outer = inner.tanh() @ weights[f"{layer}.outer.weight"].T
            outer = outer + weights[f"{layer}.outer.bias"]
            hidden = hidden + outer * multipliers[f"{layer}.dropout"][row, :length]
        mean = sum(hidden[token] for token in range(length)) / length
        mean = mean * multipliers["before_head"][row]
        outputs.append(weights["head.weight"] @ mean + weights["head.bias"])
    return torch.stack(outputs)


def probabilities(scores: Tensor) -> Tensor:
    exponentials = torch.exp(scores - scores.max().detach())
    return exponentials / exponentials.sum()


def kullback_leibler(p: Tensor, q: Tensor) -> Tensor:
    return sum(p[c] * torch.log(p[c] / q[c]) for c in range(len(p)))


def divergence_of(kind: str, first: Tensor, second: Tensor) -> Tensor:
    if kind == "mse":
        return (first[0] - second[0]) ** 2
    p, q = probabilities(first), probabilities(second)
    if kind == "js":
        mixture = (p + q) / 2
        return (kullback_leibler(p, mixture) + kullback_leibler(q, mixture)) / 2
    return (kullback_leibler(p, q) + kullback_leibler(q, p)) / 2


def row_losses(scores: Tensor, labels: Tensor, class_weights: Sequence[float] | None) -> Tensor:
    losses = []
    for row, label in enumerate(labels):
        if labels.is_floating_point():
            losses.append((scores[row, 0] - label) ** 2)
        else:
            factor = 1.0 if class_weights is None else class_weights[int(label)]
            losses.append(-factor * torch.log(probabilities(scores[row])[int(label)]))
    return torch.stack(losses)


def attack(
    gradient: Tensor,
    embeddings: Tensor,
    movable: Tensor,
    *,
    epsilon: float,
    relative: bool = False,
    norm: str = "l2",
    scope: str = "example",
) -> Tensor:
    """Return one step of the attack, Eq. 2, by a loop over what shares a budget."""
    B, T, _ = gradient.shape
    groups = {
        "example": [[(b, t) for t in range(T)] for b in range(B)],
        "token": [[(b, t)] for b in range(B) for t in range(T)],
        "batch": [[(b, t) for b in range(B) for t in range(T)]],
    }[scope]

    def length(vector: Tensor) -> float:
        if norm == "l2":
            return math.sqrt(sum(float(entry) ** 2 for entry in vector))
        return max(abs(float(entry)) for entry in vector)

    delta = torch.zeros_like(gradient)
    for group in groups:
        positions = [(b, t) for b, t in group if movable[b, t]]
        if not positions:
            continue
        size = length(torch.cat([gradient[b, t] for b, t in positions]))
        budget = epsilon
        if relative:
            budget = epsilon * length(torch.cat([embeddings[b, t] for b, t in positions]))
        for b, t in positions:
            if norm == "linf":
                delta[b, t] = budget * torch.sign(gradient[b, t])
            elif size > 0:
                delta[b, t] = budget * gradient[b, t] / size
    return delta


AXES = {"example": (1, 2), "token": (2,), "batch": (0, 1, 2)}


def ball(
    moved: Tensor,
    embeddings: Tensor,
    movable: Tensor,
    *,
    epsilon: float,
    relative: bool = False,
    norm: str = "l2",
    scope: str = "example",
) -> Tensor:
    """Shrink a perturbation into its budget: a vector as a whole, or entry by entry."""
    radius: Tensor | float = epsilon
    if relative:
        inside = embeddings * movable.unsqueeze(-1)
        squares = inside.square().sum(AXES[scope], keepdim=True)
        largest = inside.abs().amax(AXES[scope], keepdim=True)
        radius = epsilon * (squares.sqrt() if norm == "l2" else largest)
    if norm != "l2":
        return moved.clamp(-radius, radius)
    size = moved.square().sum(AXES[scope], keepdim=True).sqrt()
    return torch.where(size > radius, moved * radius / size, moved)


def surroundings(
    weights: Weights,
    batch: dict[str, Tensor],
    drops: Drops,
    *,
    call: int = 0,
    site: str = "word",
    special_tokens: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return what a perturbation is added to and which tokens it may move; 1 and 2 are special."""
    movable = batch["attention_mask"].bool()
    if not special_tokens:
        movable = movable & (batch["input_ids"] > 2)
    embeddings = weights["words.weight"].detach()[batch["input_ids"]]
    return (embeddings * drops["after_words"][call] if site == "output" else embeddings), movable


def geometry(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``attack`` and ``ball`` from a method's settings."""
    return {
        "epsilon": settings["epsilon"],
        "relative": settings.get("relative", True),
        "norm": settings.get("norm", "l2"),
        "scope": settings.get("attack_scope", "example"),
    }


def climb(
    value: Tensor,
    point: Tensor,
    around: tuple[Tensor, Tensor],
    whole: dict[str, Any],
    *,
    fraction: float = 1.0,
) -> Tensor:
    """Take one projected step up a value, by a fraction of the whole budget."""
    (gradient,) = torch.autograd.grad(value, point, retain_graph=True)
    step = attack(gradient, *around, **{**whole, "epsilon": fraction * whole["epsilon"]})
    return ball(point.detach() + step, *around, **whole)


def pairs(
    kind: str, outputs: Sequence[Tensor], *, reduction: str, rows_of_step: int
) -> Tensor | float:
    """Sum a divergence over pairs and rows, over N for the mean."""
    total: Tensor | float = 0.0
    for later in range(len(outputs)):
        for earlier in range(later):
            for row in range(len(outputs[0])):
                total = total + divergence_of(kind, outputs[earlier][row], outputs[later][row])
    return total / rows_of_step if reduction == "mean" else total
