"""Gradient attacks on word embeddings: FGM (one step) and PGD (several), for one batch at a time.

A norm is three hooks (`size`, `steepest`, `project`) and a way to draw a start; the ascent is the
same for all. Every quantity belongs to one row: no row's budget or direction depends on its
neighbours. Letters: B rows, T tokens, D embedding size, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from temper.errors import ModelError
from temper.functional.norms import scoped_norm
from temper.seeding import derive_seed, generator

AttackNorm = Literal["l2", "linf"]
Forward = Callable[[Tensor], Tensor]
"""From delta [B, T, D] to logits [B, C] in fp32."""


@dataclass(frozen=True)
class Outcome:
    """What an attack reached on each row of a batch.

    Args:
        attack: ``fgm`` or ``pgd``.
        norm: ``l2`` or ``linf``.
        steps: Gradients used by each start.
        restarts: Number of starts.
        radius: Absolute budget of each row, [B] fp64.
        radius_relative: The same over the row's embedding norm, [B] fp64; NaN where that is 0.
        logits: Logits under the worst delta found, [B, C].
    """

    attack: str
    norm: AttackNorm
    steps: int
    restarts: int
    radius: Tensor
    radius_relative: Tensor
    logits: Tensor


@dataclass(frozen=True)
class Budget:
    """How strong attacks are; see `temper.evaluation.settings.EvaluationSettings`.

    Args:
        attacks: ``fgm``, ``pgd`` or both.
        norms: ``l2`` (of the whole example), ``linf`` (of every entry) or both.
        radii: Budgets, > 0.
        relative: Whether radii are fractions of the example's embedding norm.
        steps: Gradients of each PGD start, >= 1.
        step_fraction: Length of a PGD step over the radius, > 0.
        restarts: PGD starts, >= 1.
        seed: Seed of the random starts.
    """

    attacks: tuple[str, ...]
    norms: tuple[AttackNorm, ...]
    radii: tuple[float, ...]
    relative: bool = False
    steps: int = 5
    step_fraction: float = 0.5
    restarts: int = 1
    seed: int = 0


@dataclass(frozen=True)
class Target:
    """One batch under attack.

    Args:
        forward: Logits under a delta.
        labels: Class indices, or targets of a regression, [B].
        embeddings: Unperturbed word embeddings, [B, T, D].
        movable: Tokens that may move, [B, T]; never padding.
        rows: Hash of each row's text; random starts are keyed by it.
        regression: Whether the model has one output and squared error.
    """

    forward: Forward
    labels: Tensor
    embeddings: Tensor
    movable: Tensor
    rows: list[str]
    regression: bool = False


def size(values: Tensor, *, norm: AttackNorm) -> Tensor:
    """Measure each example of [B, T, D] in a norm.

    Args:
        values: [B, T, D], zero at tokens that must not count.
        norm: ``l2`` over tokens and channels, or ``linf``: the largest entry.

    Returns:
        [B, 1, 1] fp32.
    """
    return scoped_norm(values, norm=norm, scope="example")


def steepest(gradient: Tensor, *, norm: AttackNorm) -> Tensor:
    """Return the direction of size 1 along which a linear loss grows most.

    ``g / ||g||_2`` per example for ``l2`` (FGM), ``sign(g)`` per entry for ``linf`` (FGSM). Zero
    where the gradient is zero.

    Args:
        gradient: [B, T, D], zero at tokens that must not move.
        norm: Norm of the ball.

    Returns:
        [B, T, D].

    References:
        Miyato et al., "Adversarial Training Methods for Semi-Supervised Text Classification", 2017;
        Goodfellow et al., "Explaining and Harnessing Adversarial Examples", 2015.
    """
    if norm == "linf":
        return gradient.sign()
    # Scaled first: the squares of a gradient near 1e-25 are 0 in fp32, and the attack would stand
    # still.
    largest = gradient.abs().amax(dim=(1, 2), keepdim=True)
    scaled = gradient / torch.where(largest > 0, largest, 1.0)
    length = size(scaled, norm="l2")
    return scaled / torch.where(length > 0, length, 1.0)


def project(delta: Tensor, radius: Tensor, *, norm: AttackNorm) -> Tensor:
    """Return the nearest delta inside the ball.

    Args:
        delta: [B, T, D].
        radius: [B, 1, 1], >= 0.
        norm: Norm of the ball.

    Returns:
        [B, T, D].
    """
    if norm == "linf":
        return torch.clamp(delta, min=-radius, max=radius)
    length = size(delta, norm="l2")
    return delta * torch.clamp(radius / torch.where(length > 0, length, 1.0), max=1.0)


def random_start(
    target: Target, radius: Tensor, *, norm: AttackNorm, seed: int, key: int
) -> Tensor:
    """Draw a delta uniformly from each row's ball, keyed by the row and not by its place.

    Args:
        target: The batch.
        radius: [B, 1, 1].
        norm: Norm of the ball.
        seed: Seed of the evaluation.
        key: Number of the start.

    Returns:
        [B, T, D], zero where a token must not move.
    """
    delta = torch.zeros(target.embeddings.shape, dtype=torch.float32)
    width = delta.shape[-1]
    for place, (row, mask) in enumerate(zip(target.rows, target.movable.cpu(), strict=True)):
        tokens = int(mask.sum())
        if not tokens:
            continue
        draws = generator(derive_seed(seed, "pgd", row, norm, key))
        if norm == "linf":
            drawn = torch.rand(tokens, width, generator=draws) * 2 - 1
        else:
            drawn = torch.randn(tokens, width, generator=draws)
            share = torch.rand((), generator=draws) ** (1 / (tokens * width))
            drawn = drawn / torch.linalg.vector_norm(drawn) * share
        delta[place, mask] = drawn
    return delta.to(radius.device) * radius


def ascent_loss(logits: Tensor, labels: Tensor, *, regression: bool) -> Tensor:
    """Return what attacks climb on each row.

    For a classifier ``m = logsumexp_{k != y}(z_k) - z_y``. The cross-entropy is
    ``log(1 + exp(m))``, so both rise together and their gradients point the same way. But where a
    model is very sure the gradient of the cross-entropy rounds to 0: the attack would stand still,
    and the model look robust.

    Args:
        logits: [B, C], or [B, 1] of a regression.
        labels: Class indices or targets, [B].
        regression: Whether to take the squared error.

    Returns:
        [B] fp64.

    Example:
        >>> ascent_loss(torch.tensor([[90.0, 0.0]]), torch.tensor([0]), regression=False).item()
        -90.0
    """
    if regression:
        return (logits[:, 0].double() - labels.double()) ** 2
    chosen = torch.nn.functional.one_hot(labels.long(), logits.shape[1]).bool()
    others = logits.double().masked_fill(chosen, -torch.inf).logsumexp(dim=1)
    return others - logits.double()[chosen]


def attack(target: Target, budget: Budget) -> tuple[Tensor, Iterator[Outcome]]:
    """Attack one batch at every norm and radius.

    The clean forward and its gradient are computed once and serve every first step. The first
    start of PGD goes to FGM's point and on from there, so FGM's answer is that pass's first
    forward. PGD answers with the worst point it has seen, the clean one included: a wrong answer
    before a right one, then the higher loss.

    In forward passes F and gradient passes G (a forward and a backward), with r radii and n norms:
    ``1 G + n r ((steps - 1) G + 1 F)`` for both attacks with one start.

    Args:
        target: The batch.
        budget: Attacks, norms, radii and steps.

    Returns:
        The clean logits [B, C], and the outcomes in the order of norm, radius, attack.
    """
    clean, gradient = _gradient(target, torch.zeros_like(target.embeddings, dtype=torch.float32))
    return clean, _outcomes(target, budget, clean, gradient)


def _outcomes(target: Target, budget: Budget, clean: Tensor, gradient: Tensor) -> Iterator[Outcome]:
    inside = target.movable.unsqueeze(-1)
    own = torch.where(inside, target.embeddings.float(), 0.0)
    for norm in budget.norms:
        # Budgets in fp64: a radius of .1 must stand in the rows as .1, not as fp32's .10000000149.
        extent = size(own, norm=norm).double()
        direction = steepest(gradient, norm=norm)
        for number in budget.radii:
            asked = torch.full_like(extent, number)
            exact = extent * number if budget.relative else asked
            # A row without movable tokens has no norm to compare with.
            relative = torch.where(
                extent > 0, asked if budget.relative else exact / extent, math.nan
            )
            radius = exact.float()
            first = direction * radius
            fgm, worst = None, None
            if "pgd" in budget.attacks:
                fgm, worst = _pgd(target, budget, clean, first, radius, norm)
            elif "fgm" in budget.attacks:
                fgm = _logits(target, first)
            common = Outcome("fgm", norm, 1, 1, exact.flatten(), relative.flatten(), clean)
            if "fgm" in budget.attacks and fgm is not None:
                yield replace(common, logits=fgm)
            if worst is not None:
                yield replace(
                    common,
                    attack="pgd",
                    steps=budget.steps,
                    restarts=budget.restarts,
                    logits=worst,
                )


def _pgd(
    target: Target, budget: Budget, clean: Tensor, first: Tensor, radius: Tensor, norm: AttackNorm
) -> tuple[Tensor, Tensor]:
    """Return the logits at FGM's point and the worst logits of all starts."""
    worst = clean
    fgm = clean
    for start in range(budget.restarts):
        if start == 0:
            # The clean gradient is this start's first, so one fewer remains.
            delta, gradients = first, budget.steps - 1
        else:
            delta = random_start(target, radius, norm=norm, seed=budget.seed, key=start)
            gradients = budget.steps
        for step in range(gradients):
            logits, gradient = _gradient(target, delta)
            if start == 0 and step == 0:
                fgm = logits
            worst = _worse(target, worst, logits)
            delta = delta + steepest(gradient, norm=norm) * radius * budget.step_fraction
            delta = project(delta, radius, norm=norm)
        logits = _logits(target, delta)
        if start == 0 and gradients == 0:
            fgm = logits
        worst = _worse(target, worst, logits)
    return fgm, worst


def _worse(target: Target, old: Tensor, new: Tensor) -> Tensor:
    """Keep, row by row, the logits that are worse for the model."""
    old_wrong, old_loss = _badness(target, old)
    new_wrong, new_loss = _badness(target, new)
    better = (new_wrong & ~old_wrong) | ((new_wrong == old_wrong) & (new_loss > old_loss))
    return torch.where(better.unsqueeze(-1), new, old)


def _badness(target: Target, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return whether each answer is wrong and how much the model loses by it."""
    loss = ascent_loss(logits, target.labels, regression=target.regression)
    if target.regression:
        return torch.zeros_like(loss, dtype=torch.bool), loss
    return logits.argmax(dim=-1) != target.labels.long(), loss


def _logits(target: Target, delta: Tensor) -> Tensor:
    with torch.no_grad():
        return _finite(target, target.forward(delta))


def _gradient(target: Target, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits and the loss's gradient [B, T, D], zero where a token must not move."""
    leaf = delta.detach().clone().requires_grad_(True)
    with torch.enable_grad():
        logits = _finite(target, target.forward(leaf))
        loss = ascent_loss(logits, target.labels, regression=target.regression)
        (gradient,) = torch.autograd.grad(loss.sum(), leaf)
    gradient = torch.where(target.movable.unsqueeze(-1), gradient, 0.0)
    broken = ~torch.isfinite(gradient).flatten(1).all(dim=1)
    if bool(broken.any()):
        row = target.rows[int(broken.nonzero()[0, 0])]
        raise ModelError(
            f"The gradient at the embeddings of row {row} is not finite, so it cannot be attacked. "
            "Load the model in fp32."
        )
    return logits.detach(), gradient


def _finite(target: Target, logits: Tensor) -> Tensor:
    broken = ~torch.isfinite(logits.detach()).all(dim=-1)
    if bool(broken.any()):
        row = target.rows[int(broken.nonzero()[0, 0])]
        raise ModelError(f"The model's logits of row {row} are not finite. Load the model in fp32.")
    return logits
