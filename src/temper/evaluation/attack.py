"""Gradient attacks on word embeddings: FGM (one step) and PGD (several), for one batch at a time.

Norms are those of training (`temper.functional.norms`). Each row is attacked independently of the
others in its batch. Letters: B rows, b of these rows, T tokens, D embedding size, C classes.

Shapes of logits and labels (-100: no label):

- one class: [B, C] and [B]; a regression: [B, 1] and [B];
- several labels: [B, L, 2] and [B, L];
- tags: [B, T, C] and [B, T], labels at the first token of each word;
- answers in contexts: [B, 2, T] and [B, 2], the tokens of start and end;
- completions: losses [B, ...] without labels, because their logits would be too large to keep.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, TypeAlias

from pydantic import Field, model_validator

from temper.errors import ModelError
from temper.evaluation.common_settings import PerspectiveSettings, PositiveFloat
from temper.functional import norms
from temper.functional.norms import Norm
from temper.lazy import torch
from temper.seeding import derive_seed, generator
from temper.types import UNLABELED

if TYPE_CHECKING:
    from torch import Tensor

Forward: TypeAlias = "Callable[[Tensor, Tensor], Tensor]"
"""Function of a perturbation [b, T, D] and its rows' indices in the batch [b]: fp32 logits."""


@dataclass(frozen=True)
class Outcome:
    """The result of an attack on each row of a batch.

    Args:
        attack: ``fgm`` or ``pgd``.
        norm: ``l2`` or ``linf``.
        steps: Gradient steps of each start.
        restarts: Number of starts.
        radius_set: Radius as in the settings, absolute or relative.
        radius: Absolute radius of each row, [B] fp64.
        radius_relative: ``radius`` divided by the norm of the row's embeddings, [B] fp64; NaN if
            that norm is 0.
        logits: Logits under the worst perturbation that was found.
    """

    attack: str
    norm: Norm
    steps: int
    restarts: int
    radius_set: float
    radius: Tensor
    radius_relative: Tensor
    logits: Tensor


class PGDSettings(PerspectiveSettings):
    """Settings of PGD."""

    steps: int = Field(default=10, ge=1, description="Gradient steps from each start.")
    step_size: PositiveFloat = Field(
        default=1.0,
        description="Size of the first step as a fraction of the radius; halved for a row "
        "whenever its loss does not rise.",
    )
    restarts: int = Field(
        default=1,
        ge=1,
        description="Number of random starts; the worst result counts. Only rows that are "
        "still correct are attacked again.",
    )


class EmbeddingAttackSettings(PerspectiveSettings):
    """Settings of the embedding attack."""

    fgm: bool = Field(default=True, description="Run FGM: a single step.")
    pgd: PGDSettings | None = Field(
        default=PGDSettings(), description="Settings of PGD: several steps."
    )
    norms: tuple[Norm, ...] = Field(
        default=("l2",), description="`l2` bounds the whole example, `linf` every entry."
    )
    radii: tuple[PositiveFloat, ...] = Field(
        default=(0.01, 0.25, 0.5), description="Radii to measure; absolute unless `relative`."
    )
    relative: bool = Field(
        default=False, description="Radii are fractions of the norm of the example's embeddings."
    )
    special_tokens: bool = Field(
        default=True, description="Also perturb special tokens such as [CLS] and [SEP]."
    )

    @model_validator(mode="after")
    def _attacks(self) -> Self:
        if not self.fgm and self.pgd is None:
            raise ValueError("has neither `fgm` nor `pgd`; keep one of them")
        return self


@dataclass(frozen=True)
class Target:
    """One batch under attack.

    Args:
        forward: Computes logits of some of the rows under a perturbation.
        labels: See the module docstring; None for completions, whose losses ``forward`` returns.
        embeddings: Word embeddings, [B, T, D].
        movable: Whether a token may be perturbed, [B, T]; False at padding.
        rows: Hashes of the texts, which seed random starts.
    """

    forward: Forward
    labels: Tensor | None
    embeddings: Tensor
    movable: Tensor
    rows: list[str]
    regression: bool = False

    @property
    def classes(self) -> Tensor | None:
        """The class of each row, [B]; None if a row has several labels, tags, or a value."""
        if self.labels is None or self.labels.dim() > 1 or self.regression:
            return None
        return self.labels.long()


def random_start(target: Target, radius: Tensor, *, norm: Norm, seed: int, key: int) -> Tensor:
    """Draw a perturbation [B, T, D] uniformly from the ball of each row's radius [B, 1, 1].

    The draw depends on the row's hash, not on its index in the batch. ``key`` is the number of the
    start. Tokens that are not movable get zeros.
    """
    delta = torch.zeros(target.embeddings.shape, dtype=torch.float32)
    width = delta.shape[-1]
    for index, (row, mask) in enumerate(zip(target.rows, target.movable.cpu(), strict=True)):
        tokens = int(mask.sum())
        if not tokens:
            continue
        draws = generator(derive_seed(seed, "pgd", row, norm, key))
        if norm != "l2":
            drawn = torch.rand(tokens, width, generator=draws) * 2 - 1
        else:
            drawn = torch.randn(tokens, width, generator=draws)
            fraction = torch.rand((), generator=draws) ** (1 / (tokens * width))
            drawn = drawn / torch.linalg.vector_norm(drawn) * fraction
        delta[index, mask] = drawn
    return delta.to(radius.device) * radius


def ascent_loss(logits: Tensor, labels: Tensor | None, *, regression: bool) -> Tensor:
    """Return the loss that attacks maximize on each row, [B] fp64; 0 for a row without labels.

    For one class it is the margin ``m = logsumexp_{k != y}(z_k) - z_y``. The cross-entropy is
    ``log(1 + exp(m))``, so both have the same maximum. But the gradient of the cross-entropy rounds
    to 0 if a model is very confident: the attack would not move, and the model would look robust.

    For several labels, tags, and answers in contexts it is the mean cross-entropy. There, the
    margin of a label that is already wrong would outweigh the others. For a regression it is the
    squared error, for completions the first column of ``logits``.
    """
    if labels is None:
        return logits[:, 0].double()
    if regression:
        return (logits[:, 0].double() - labels.double()) ** 2
    if labels.dim() > 1:
        losses = torch.nn.functional.cross_entropy(
            logits.double().transpose(1, 2), labels, ignore_index=UNLABELED, reduction="none"
        )
        return losses.sum(1) / (labels != UNLABELED).sum(1).clamp(min=1)
    chosen = torch.nn.functional.one_hot(labels.long(), logits.shape[1]).bool()
    others = logits.double().masked_fill(chosen, -torch.inf).logsumexp(dim=1)
    return others - logits.double()[chosen]


def attack(
    target: Target, settings: EmbeddingAttackSettings, *, seed: int = 0
) -> tuple[Tensor, Iterator[Outcome]]:
    """Attack one batch at every norm and radius; ``seed`` is that of random starts.

    All attacks share the clean gradient for their first step. The first start of PGD continues from
    FGM's point, so FGM costs no further pass. PGD returns the worst point that it has seen,
    including the clean one: a wrong prediction is worse than a right one, then the higher loss is
    worse. A row with one class is not attacked further once it is wrong, so its loss is not the
    maximum. Other rows are attacked until the last step.

    Cost in forward passes F and gradient passes G (a forward and a backward), with r radii and n
    norms: at most ``1 G + n r ((restarts steps - 1) G + restarts F)``; wrong rows stop early.

    Returns:
        The clean logits, and the outcomes by norm, radius and attack, in this order.
    """
    everyone = torch.arange(len(target.rows), device=target.embeddings.device)
    nothing = torch.zeros_like(target.embeddings, dtype=torch.float32)
    clean, gradient = _gradient(target, nothing, everyone)
    return clean, _outcomes(target, settings, seed, clean, gradient)


def _outcomes(
    target: Target, settings: EmbeddingAttackSettings, seed: int, clean: Tensor, gradient: Tensor
) -> Iterator[Outcome]:
    embeddings = norms.masked(target.embeddings, target.movable)
    for norm in settings.norms:
        # Budgets in fp64: a radius of 0.1 must be reported as 0.1, not as fp32's 0.10000000149.
        extent = norms.size(embeddings, norm=norm).double()
        direction = norms.steepest(gradient, norm=norm)
        for number in settings.radii:
            asked = torch.full_like(extent, number)
            exact = extent * number if settings.relative else asked
            # A row without movable tokens has no norm to compare with.
            relative = torch.where(
                extent > 0, asked if settings.relative else exact / extent, math.nan
            )
            radius = exact.float()
            first = direction * radius
            if settings.pgd is not None:
                fgm, worst = _pgd(target, settings.pgd, seed, clean, first, radius, norm)
            else:
                everyone = torch.arange(len(clean), device=clean.device)
                fgm = _logits(target, first, everyone)
            common = Outcome("fgm", norm, 1, 1, number, exact.flatten(), relative.flatten(), fgm)
            if settings.fgm:
                yield common
            if settings.pgd is not None:
                yield replace(
                    common,
                    attack="pgd",
                    steps=settings.pgd.steps,
                    restarts=settings.pgd.restarts,
                    logits=worst,
                )


def _pgd(
    target: Target,
    pgd: PGDSettings,
    seed: int,
    clean: Tensor,
    first: Tensor,
    radius: Tensor,
    norm: Norm,
) -> tuple[Tensor, Tensor]:
    """Return the logits at FGM's point and the worst logits of all starts.

    Each step goes from the point with the highest loss so far. The step of a row is halved whenever
    its loss does not rise. Steps do not depend on the number of steps or starts, so an attack with
    more of them is never weaker.
    """
    worst = fgm = clean
    everyone = torch.arange(len(clean), device=clean.device)
    for start in range(pgd.restarts):
        # The first start uses the clean gradient as its first step.
        rows, left, delta = everyone, pgd.steps - 1, first
        if start > 0:
            rows, left = _not_wrong(target, worst, everyone), pgd.steps
            delta = random_start(target, radius, norm=norm, seed=seed, key=start)[rows]
        # Of each row: the point with the highest loss, its gradient, and the next step's length.
        point, slope = torch.zeros_like(first), torch.zeros_like(first)
        highest = torch.full((len(clean),), -torch.inf, dtype=torch.float64, device=clean.device)
        reach = pgd.step_size * radius
        while len(rows):
            if left:
                logits, gradient = _gradient(target, delta, rows)
            else:
                logits = _logits(target, delta, rows)
            if start == 0 and left == pgd.steps - 1:
                fgm = logits
            worst = _worse(target, worst, worst.index_copy(0, rows, logits))
            if not left:
                break
            loss = _loss(target, logits, rows)
            rose = loss > highest[rows]
            risen = rows[rose]
            point[risen], slope[risen], highest[risen] = delta[rose], gradient[rose], loss[rose]
            reach[rows[~rose]] /= 2
            rows = _not_wrong(target, worst, rows)
            step = norms.steepest(slope[rows], norm=norm) * reach[rows]
            delta = norms.project(point[rows] + step, radius[rows], norm=norm)
            left -= 1
    return fgm, worst


def _loss(target: Target, logits: Tensor, rows: Tensor) -> Tensor:
    labels = None if target.labels is None else target.labels[rows]
    return ascent_loss(logits, labels, regression=target.regression)


def _not_wrong(target: Target, worst: Tensor, rows: Tensor) -> Tensor:
    """Return the rows that are right at every point; all rows unless each has one class."""
    if (classes := target.classes) is None:
        return rows
    return rows[worst[rows].argmax(dim=-1) == classes[rows]]


def _worse(target: Target, old: Tensor, new: Tensor) -> Tensor:
    """Return the worse logits for the model, row by row; see `attack`."""
    old_wrong, old_loss = _badness(target, old)
    new_wrong, new_loss = _badness(target, new)
    better = (new_wrong & ~old_wrong) | ((new_wrong == old_wrong) & (new_loss > old_loss))
    return torch.where(better.reshape(-1, *[1] * (new.dim() - 1)), new, old)


def _badness(target: Target, logits: Tensor) -> tuple[Tensor, Tensor]:
    loss = ascent_loss(logits, target.labels, regression=target.regression)
    if (classes := target.classes) is None:
        return torch.zeros_like(loss, dtype=torch.bool), loss
    return logits.argmax(dim=-1) != classes, loss


def _logits(target: Target, delta: Tensor, rows: Tensor) -> Tensor:
    with torch.no_grad():
        return _finite(target, target.forward(delta, rows), rows)


def _gradient(target: Target, delta: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits, and the gradient of the loss [b, T, D], zero at immovable tokens."""
    leaf = delta.detach().clone().requires_grad_(True)
    with torch.enable_grad():
        logits = _finite(target, target.forward(leaf, rows), rows)
        (gradient,) = torch.autograd.grad(_loss(target, logits, rows).sum(), leaf)
    gradient = torch.where(target.movable[rows].unsqueeze(-1), gradient, 0.0)
    names = [target.rows[row] for row in rows.tolist()]
    check_finite(gradient, names, what="The gradient at the embeddings")
    return logits.detach(), gradient


def _finite(target: Target, logits: Tensor, rows: Tensor) -> Tensor:
    names = [target.rows[row] for row in rows.tolist()]
    check_finite(logits.detach(), names, what="The model's output for the text")
    return logits


def check_finite(values: Tensor, names: Sequence[str], *, what: str) -> None:
    """Raise a `ModelError` if a value [b, ...] is not finite; ``names`` [b] are row hashes."""
    broken = ~torch.isfinite(values).flatten(1).all(dim=1)
    if bool(broken.any()):
        row = names[int(broken.nonzero()[0, 0])]
        raise ModelError(
            f"{what} of row {row} is not finite, so the row cannot be attacked. Load the model's "
            "weights in fp32."
        )
