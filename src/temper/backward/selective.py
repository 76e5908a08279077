"""Selective update: entries of the gradient move with a probability that follows their saliency."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from temper.backward.rule import UpdateRule
from temper.errors import TemperError
from temper.functional.masks import (
    FINE_LEVELS,
    LEVELS,
    Normalise,
    Orientation,
    bucket_counts,
    bucket_ranks,
    buckets_of,
    drop_codes,
    keep_probability,
    nearest_codes,
    quantise,
    range_normalise,
    spaced_levels,
    thin,
    thin_by_bucket,
    thin_by_code,
)
from temper.models.network import Parameters
from temper.seeding import Streams, generator
from temper.types import Gradients, State, Step


@dataclass(frozen=True)
class SelectiveUpdate(UpdateRule):
    """Mask the gradient at random and divide what is kept by its probability.

    ``s = grad^2`` normalised to s~ in [0, 1], ``p = sigmoid(2 beta (s~ - alpha))``, ``m ~
    Bernoulli(p)``, gradient ``m * g / p``.

    A mask of a step leaves nothing behind. One of an epoch holds five bytes for each entry in
    scope: the importance in fp32, which is one copy of those weights, and a byte that names one of
    255 probabilities, or 0 for what is dropped. p is rounded to those (1.4 % at most for a p_min of
    1e-3) before the draw, so that draw and divisor agree.

    Args:
        alpha: Turning point; about the share that is masked.
        beta: Sharpness.
        p_min: Smallest probability used; 0 sets no bound, and draws a step's mask with 32 bits
            instead of 16.
        scale: Whether to divide by p.
        normalise: ``rank``: global rank among the non-zero entries; ``range``: Eq. 8 as printed.
        orientation: ``prose``: salient entries move; ``printed``: Eq. 9 as printed.
        refresh: A new mask every ``step``, or one an ``epoch`` from the squared gradients of the
            epoch before (a pass on the clean loss before the first).
        scope: ``blocks`` (embeddings and head always train; all where there are no blocks), or
            ``all``.
        freeze_masked: Whether a masked weight stays where it is, against momentum and decay.
        clipping: Mask ``after`` or ``before`` the gradient's norm is clipped.

    References:
        UEGR (arXiv 2503.16550), Eqs. 7 to 9; RoAST (arXiv 2312.04032) for the rank and the epoch's
        mask.
    """

    alpha: float = 0.6
    beta: float = 1.0
    p_min: float = 1e-3
    scale: bool = True
    normalise: Normalise = "rank"
    orientation: Orientation = "prose"
    refresh: Literal["step", "epoch"] = "step"
    scope: Literal["blocks", "all"] = "blocks"
    freeze_masked: bool = False
    clipping: Literal["after", "before"] = "after"

    name = "selective"

    @property
    def slots(self) -> frozenset[str]:  # type: ignore[override]
        """The mask, and the settling where masked weights stay."""
        return frozenset({"mask", *(["settling"] if self.freeze_masked else [])})

    @property
    def pre_pass(self) -> bool:  # type: ignore[override]
        """Tell whether importance must be measured before the first epoch."""
        return self.refresh == "epoch"

    @property
    def levels(self) -> int:
        """What probabilities are rounded to shares of: a 16-bit draw knows none below 1/65536.

        An epoch's mask is drawn once, so that 32 bits cost nothing.
        """
        return LEVELS if self.p_min > 0 and self.refresh == "step" else FINE_LEVELS

    def names(self, params: Parameters) -> list[str]:
        """Return the parameters that the mask covers."""
        if self.scope == "all" or not params.blocks:
            return list(params.tensors)
        return [name for name in params.tensors if name in params.blocks]

    def init(self, params: Parameters) -> State:
        """Start with no importance and no mask."""
        if self.refresh == "step":
            return {}
        chosen = {name: params.tensors[name] for name in self.names(params)}
        zeros = {
            name: torch.zeros(tensor.shape, dtype=torch.float32, device=tensor.device)
            for name, tensor in chosen.items()
        }
        return {"importance": zeros, "codes": {}, "epoch": -1, "observed": 0, "loss_scale": 1.0}

    def observe(self, grads: Gradients, params: Parameters, state: State) -> None:
        """Add a batch's squared gradient to the importance."""
        if state["observed"] == 0:
            # Kept until now: an epoch in which only the head trained has no importance of its own.
            for total in state["importance"].values():
                total.zero_()
        for name, total in state["importance"].items():
            if name in grads:
                gradient = grads[name].float()
                # What a loss scaler multiplied by weighs no batch more than another.
                total.addcmul_(gradient, gradient, value=state["loss_scale"] ** -2)
        state["observed"] += 1

    def begin_epoch(self, params: Parameters, state: State, rng: Streams, *, epoch: int) -> None:
        """Draw the epoch's mask from the importance gathered so far, and gather anew."""
        if self.refresh == "step" or state["epoch"] == epoch:
            return
        if not state["observed"] and not state["codes"]:
            raise TemperError(
                "refresh='epoch' needs the importance of the epoch before. Call "
                "prepare(batches) once before the first epoch (RobustTrainer does)."
            )
        roots = {name: total.sqrt() for name, total in state["importance"].items()}
        device = next(iter(roots.values())).device
        table = _table(self.p_min, device)
        draws = generator(rng.shared("mask", "epoch", epoch), device)
        state["codes"] = {
            name: drop_codes(codes, table, draws)
            for name, codes in self._codes(roots, table).items()
        }
        state["kept"] = _share({name: codes > 0 for name, codes in state["codes"].items()})
        state["epoch"], state["observed"] = epoch, 0

    def penalise(
        self, grads: Gradients, params: Parameters, state: State, step: Step, rng: Streams
    ) -> Gradients:
        """Gather importance from gradients as they came; mask them, if before clipping."""
        if self.refresh == "epoch":
            state["loss_scale"] = step.loss_scale
            if any(name in grads for name in state["importance"]) and not self._overflown(
                grads, state
            ):
                self.observe(grads, params, state)
        return self._masked(grads, params, state, rng) if self.clipping == "before" else grads

    def transform(
        self, grads: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        """Mask after clipping, unless it was asked for before."""
        return self._masked(grads, params, state, rng) if self.clipping == "after" else grads

    def diagnostics(self, state: State) -> dict[str, Tensor | float]:
        """Return the share of the entries that the last mask kept."""
        return {"mask/kept": state["kept"]} if "kept" in state else {}

    def _masked(
        self, grads: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        """Return the gradients with those in scope masked."""
        chosen = {
            name: grads[name].float().contiguous() for name in self.names(params) if name in grads
        }
        if not chosen or self._overflown(chosen, state):
            return grads
        before = (
            {name: gradient != 0 for name, gradient in chosen.items()} if self.freeze_masked else {}
        )
        if self.refresh == "epoch":
            masked = self._under_epoch_mask(chosen, state)
        else:
            masked = self._under_step_mask(chosen, state, rng)
        if self.freeze_masked:
            state["frozen"] = {
                name: (moved & (masked[name] == 0), params.tensors[name].detach().clone())
                for name, moved in before.items()
            }
        return {
            **grads,
            **{name: masked[name].to(grads[name].dtype) for name in chosen},
        }

    def _overflown(self, grads: Gradients, state: State) -> bool:
        """Tell whether a loss scaler will skip this step: its gradients say nothing of saliency."""
        if state.get("loss_scale", 1.0) == 1.0:
            return False
        sums = torch.stack([gradient.sum() for gradient in grads.values()])
        return not bool(torch.isfinite(sums).all())

    def settle(self, params: Parameters, state: State, step: Step) -> None:
        """Put masked weights back where they were, if they are to stay."""
        with torch.no_grad():
            for name, (masked, was) in state.pop("frozen", {}).items():
                tensor = params.tensors[name]
                tensor.copy_(torch.where(masked, was, tensor))

    def _under_epoch_mask(self, chosen: Gradients, state: State) -> Gradients:
        if state["epoch"] < 0:
            raise TemperError(
                "refresh='epoch' has no mask yet. Call prepare(batches) once, and "
                "begin_epoch(number) before each epoch's first step (RobustTrainer does both)."
            )
        codes = state["codes"]
        table = _table(self.p_min, next(iter(chosen.values())).device)
        return {
            name: thin_by_code(gradient, codes[name], table, scale=self.scale)
            for name, gradient in chosen.items()
        }

    def _under_step_mask(self, chosen: Gradients, state: State, rng: Streams) -> Gradients:
        first = next(iter(chosen.values()))
        draws = generator(rng.shared("mask"), first.device)
        if self.normalise == "rank":
            counts = bucket_counts(list(chosen.values()))
            table = self._quantised(bucket_ranks(counts))
            state["kept"] = (counts * table).sum() / (counts.sum().clamp(min=1) * self.levels)
            return {
                name: thin_by_bucket(gradient, table, draws, scale=self.scale)
                for name, gradient in chosen.items()
            }
        shares = range_normalise(list(chosen.values()))
        masked = {
            name: thin(gradient, self._quantised(share), draws, scale=self.scale)
            for (name, gradient), share in zip(chosen.items(), shares, strict=True)
        }
        state["kept"] = _share({name: tensor != 0 for name, tensor in masked.items()})
        return masked

    def _codes(self, roots: Gradients, table: Tensor) -> Gradients:
        """Return the code of each entry's probability, from the roots of the importance."""
        if self.normalise == "range":
            shares = range_normalise(list(roots.values()))
            return {
                name: nearest_codes(self._quantised(share), table)
                for name, share in zip(roots, shares, strict=True)
            }
        ranks = bucket_ranks(bucket_counts(list(roots.values())))
        by_bucket = nearest_codes(self._quantised(ranks), table)
        return {
            name: by_bucket.index_select(0, buckets_of(root.flatten())).view_as(root)
            for name, root in roots.items()
        }

    def _quantised(self, saliency: Tensor) -> Tensor:
        p = keep_probability(
            saliency, alpha=self.alpha, beta=self.beta, orientation=self.orientation
        )
        return quantise(p, p_min=self.p_min, levels=self.levels)


@cache
def _table(p_min: float, device: torch.device) -> Tensor:
    return spaced_levels(p_min=p_min).to(device)


def _share(kept: dict[str, Tensor]) -> Tensor:
    counts = torch.stack([mask.sum() for mask in kept.values()]).sum()
    return counts / sum(mask.numel() for mask in kept.values())
