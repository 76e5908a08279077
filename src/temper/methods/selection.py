"""Selective update: randomly mask gradient entries by their saliency (UEGR, RoAST).

Settings and update rules that these methods share.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field, FiniteFloat

from temper.backward.rule import Parameters, UpdateRule
from temper.errors import TemperError
from temper.functional.masks import (
    FINE_LEVELS,
    LEVELS,
    Normalize,
    Orientation,
    bucket_counts,
    bucket_factors,
    bucket_ranks,
    buckets_of,
    drop_codes,
    keep_probability,
    nearest_codes,
    quantize,
    range_normalize,
    spaced_levels,
    thin,
    thin_by_bucket,
    thin_by_code,
)
from temper.lazy import Tensor, torch
from temper.methods.bounds import Fraction
from temper.methods.method import Method
from temper.methods.variants import Off, Variant, variant
from temper.seeding import Streams
from temper.types import Gradients, State, Step

logger = logging.getLogger(__name__)


class Selective(Variant):
    """A random mask over the gradient, which keeps salient entries more often."""

    kind: Literal["selective"] = "selective"
    alpha: Fraction = Field(
        default=0.6,
        description="Saliency in [0, 1] at which the probability is 1/2; about the fraction of "
        "entries that is dropped.",
    )
    beta: FiniteFloat = Field(
        default=1.0,
        gt=0.0,
        le=100.0,
        description="How steeply the probability rises with the saliency.",
    )
    p_min: Fraction = Field(
        default=1e-3,
        description="Lower bound of the probability; 0 is no bound (draws then use 32 bits).",
    )
    scale: bool = Field(
        default=True, description="Whether kept entries are divided by their probability."
    )
    normalize: Normalize = Field(
        default="rank",
        description="How saliencies are scaled to [0, 1]: by `rank` (RoAST's code) or by "
        "`range` (UEGR's Eq. 8, with the minimum subtracted).",
    )
    orientation: Orientation = Field(
        default="prose",
        description="`prose` keeps salient entries more often; `printed` keeps them less often "
        "(UEGR's Eq. 9 as printed).",
    )
    refresh: Literal["step", "epoch"] = Field(
        default="step", description="Draw a new mask every `step` or every `epoch`."
    )
    scope: Literal["blocks", "all"] = Field(
        default="blocks",
        description="Which parameters are masked: those of the `blocks`, or `all`.",
    )


@dataclass(frozen=True)
class Selection(UpdateRule):
    """Base class of selective updates: the covered entries and their probabilities.

    The saliency ``s = g^2`` is normalized to s~ in [0, 1]. The gradient g becomes ``m * g / p``
    with ``m ~ Bernoulli(p)`` and ``p = sigmoid(2 beta (s~ - alpha))``.

    References:
        UEGR (arXiv 2503.16550), Eqs. 7 to 9; RoAST (arXiv 2312.04032) for normalization by rank and
        masks by epoch.
    """

    settings: Selective

    name = "selective"
    conflicts = frozenset({"mask"})
    supports_fsdp = True
    logged = MappingProxyType({"mask/kept": "kept"})

    def names(self, params: Parameters) -> list[str]:
        # With scope 'blocks', embeddings and head are not masked.
        # A model without blocks is masked whole.
        if self.settings.scope == "all" or not params.blocks:
            return list(params.tensors)
        return [name for name in params.tensors if name in params.blocks]

    def _covered(self, grads: Gradients, params: Parameters) -> Gradients:
        return {
            name: grads[name].float().contiguous() for name in self.names(params) if name in grads
        }

    def _quantized(self, saliency: Tensor, levels: int) -> Tensor:
        """Return the integers q of the probabilities p = q/levels of Eq. 9."""
        settings = self.settings
        p = keep_probability(
            saliency, alpha=settings.alpha, beta=settings.beta, orientation=settings.orientation
        )
        return quantize(p, p_min=settings.p_min, levels=levels)


@dataclass(frozen=True)
class SelectiveUpdate(Selection):
    """Draw a new mask in each step, from the squared gradients of that step."""

    @property
    def levels(self) -> int:
        """Resolution of the probabilities: 16 bits, or 32 bits if ``p_min`` is 0."""
        return LEVELS if self.settings.p_min > 0 else FINE_LEVELS

    def transform(
        self, grads: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        covered = self._covered(grads, params)
        if not covered:
            return grads
        mask = self._by_rank if self.settings.normalize == "rank" else self._by_range
        masked = mask(covered, params, state, rng)
        return {**grads, **{name: masked[name].to(grads[name].dtype) for name in covered}}

    def _by_rank(
        self, covered: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        """Mask in place by rank, with one probability per magnitude bucket."""
        counts = _counts(params, covered)
        table = self._quantized(bucket_ranks(counts), self.levels)
        state["kept"] = (counts * table).sum() / (counts.sum().clamp(min=1) * self.levels)
        thin_by_bucket(
            list(covered.values()),
            bucket_factors(table),
            [rng.shared("mask", name) for name in covered],
            starts=[params.first_entry(name) for name in covered],
            scale=self.settings.scale,
        )
        return covered

    def _by_range(
        self, covered: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        saliency = range_normalize(list(covered.values()), largest=params.largest)  # Eq. 8
        masked = {
            name: thin(
                gradient,
                self._quantized(values, self.levels),
                rng.shared("mask", name),
                start=params.first_entry(name),
                scale=self.settings.scale,
            )
            for (name, gradient), values in zip(covered.items(), saliency, strict=True)
        }
        state["kept"] = _kept(params, {name: tensor != 0 for name, tensor in masked.items()})
        return masked


@dataclass(frozen=True)
class EpochSelectiveUpdate(Selection):
    """Draw one mask per epoch, from the squared gradients of the previous epoch.

    The first mask needs the gradients of one epoch before training. The state takes five bytes per
    covered entry: the importance in fp32, and the mask. A byte of the mask is 0 for a dropped
    entry, or else the code of its probability (see `spaced_levels`).
    """

    def init(self, params: Parameters) -> State:
        covered = {name: params.tensors[name] for name in self.names(params)}
        zeros = {
            name: torch.zeros(tensor.shape, dtype=torch.float32, device=tensor.device)
            for name, tensor in covered.items()
        }
        return {"importance": zeros, "codes": {}, "epoch": -1, "observed": 0, "loss_scale": 1.0}

    def accumulate(self, grads: Gradients, params: Parameters, state: State) -> None:
        if state["observed"] == 0:
            # Reset here, not in begin_epoch: an epoch that trains only the head adds nothing.
            for total in state["importance"].values():
                total.zero_()
        for name, total in state["importance"].items():
            if name in grads:
                gradient = grads[name].float()
                # Divide by the loss scale, which differs between steps.
                total.addcmul_(gradient, gradient, value=state["loss_scale"] ** -2)
        state["observed"] += 1

    def begin_epoch(self, params: Parameters, state: State, rng: Streams, *, epoch: int) -> None:
        """Draw the epoch's mask from the accumulated importance, and reset the importance."""
        if state["epoch"] == epoch:
            return
        if not state["observed"] and not state["codes"]:
            raise TemperError(
                "refresh='epoch' needs the squared gradients of an epoch for its first mask. Call "
                "prepare(batches) once before the first epoch (RobustTrainer does)."
            )
        roots = {name: total.sqrt() for name, total in state["importance"].items()}
        table = _table(self.settings.p_min, next(iter(roots.values())).device)
        state["codes"] = {
            name: drop_codes(
                codes,
                table,
                rng.shared("mask", "epoch", epoch, name),
                start=params.first_entry(name),
            )
            for name, codes in self._codes(roots, table, params).items()
        }
        state["kept"] = _kept(params, {n: codes > 0 for n, codes in state["codes"].items()})
        state["epoch"], state["observed"] = epoch, 0

    def regularize(
        self, grads: Gradients, params: Parameters, state: State, step: Step, rng: Streams
    ) -> Gradients:
        """Add the squared gradients, before clipping, to the importance."""
        state["loss_scale"] = step.loss_scale
        covered = any(name in grads for name in state["importance"])
        if covered and not _overflowed(grads, params, state):
            self.accumulate(grads, params, state)
        return grads

    def transform(
        self, grads: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        covered = self._covered(grads, params)
        if not covered or _overflowed(covered, params, state):
            return grads
        if state["epoch"] < 0:
            raise TemperError(
                "refresh='epoch' has no mask yet. Call prepare(batches) once, and "
                "begin_epoch(number) before each epoch's first step (RobustTrainer does both)."
            )
        table = _table(self.settings.p_min, next(iter(covered.values())).device)
        for name, gradient in covered.items():
            thin_by_code(gradient, state["codes"][name], table, scale=self.settings.scale)
        return {**grads, **{name: covered[name].to(grads[name].dtype) for name in covered}}

    def _codes(self, roots: Gradients, table: Tensor, params: Parameters) -> Gradients:
        """Return the code of each entry's probability from the square root of its importance."""
        if self.settings.normalize == "range":
            saliency = range_normalize(list(roots.values()), largest=params.largest)  # Eq. 8
            return {
                name: nearest_codes(self._quantized(values, FINE_LEVELS), table)
                for name, values in zip(roots, saliency, strict=True)
            }
        ranks = bucket_ranks(_counts(params, roots))
        by_bucket = nearest_codes(self._quantized(ranks, FINE_LEVELS), table)
        return {
            name: by_bucket.index_select(0, buckets_of(root.flatten())).view_as(root)
            for name, root in roots.items()
        }


def _overflowed(grads: Gradients, params: Parameters, state: State) -> bool:
    """Return whether gradients overflowed, so that the loss scaler will skip this step."""
    if state["loss_scale"] == 1.0:
        return False
    sums = torch.stack([gradient.sum() for gradient in grads.values()])
    return not bool(torch.isfinite(params.summed(sums)).all())


@cache
def _table(p_min: float, device: torch.device) -> Tensor:
    return spaced_levels(p_min=p_min).to(device)


def _counts(params: Parameters, tensors: Gradients) -> Tensor:
    """Count entries by magnitude bucket over all processes, which may hold shards."""
    positions = [
        (params.first_entry(name), params.shape(name, tensor)) for name, tensor in tensors.items()
    ]
    return params.summed(bucket_counts(list(tensors.values()), parts=positions))


def _kept(params: Parameters, kept: dict[str, Tensor]) -> Tensor:
    counts = torch.stack([mask.sum() for mask in kept.values()]).sum()
    return params.summed(counts) / sum(params.shape(n, mask).numel() for n, mask in kept.items())


class SelectionConfig(Method):
    """Settings of the selective update."""

    mask: Selective | Off = variant(Selective(), "Mask over the gradient: `selective` or `off`.")

    def check(self) -> None:
        super().check()
        if not isinstance(self.mask, Selective) or not self.mask.scale or self.mask.beta < 5:
            return
        # Normalized by range, nearly all saliencies are close to 0 (docs/methods/uegr.md).
        if (self.mask.normalize, self.mask.orientation) == ("range", "prose"):
            logger.warning(
                "normalize='range' with orientation='prose' and beta >= 5 gives nearly every entry "
                "the smallest probability: almost nothing is updated, and kept entries are "
                "divided by p_min=%g. Use normalize='rank'.",
                self.mask.p_min,
            )

    @classmethod
    def from_scratch(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        # As in UEGR, all parameters are masked.
        return {"mask": {"scope": "all"}}

    def update(self) -> list[UpdateRule]:
        if not isinstance(self.mask, Selective):
            return []
        rule = SelectiveUpdate if self.mask.refresh == "step" else EpochSelectiveUpdate
        return [rule(self.mask)]
