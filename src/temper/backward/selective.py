"""Masks over the gradient: the selective update's, Child-Tuning's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
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
    bucket_factors,
    bucket_ranks,
    buckets_of,
    drop_codes,
    highest_kept,
    keep_probability,
    nearest_codes,
    pieces_with_draws,
    quantise,
    range_normalise,
    spaced_levels,
    thin,
    thin_by_bucket,
    thin_by_code,
    touched_rows,
)
from temper.models.network import Parameters
from temper.seeding import Streams
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

    name = "selective"
    slots = frozenset({"mask"})
    takes_rows = True
    logged = MappingProxyType({"mask/kept": "kept"})

    @property
    def moved(self) -> float:  # type: ignore[override]
        """The gradient is masked, and before that read for its ranks or gathered by the epoch."""
        # Gathering reads the gradient and rewrites the importance; the epoch's codes are bytes.
        return (3.25 if self.refresh == "epoch" else 1.0) + 2.0

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
        state["codes"] = {
            name: drop_codes(
                codes,
                table,
                rng.shared("mask", "epoch", epoch, name),
                start=params.first_entry(name),
            )
            for name, codes in self._codes(roots, table, params).items()
        }
        state["kept"] = _share(params, {n: codes > 0 for n, codes in state["codes"].items()})
        state["epoch"], state["observed"] = epoch, 0

    def penalise(
        self, grads: Gradients, params: Parameters, state: State, step: Step, rng: Streams
    ) -> Gradients:
        """Gather an epoch's importance from the gradients before they are clipped."""
        if self.refresh == "epoch":
            state["loss_scale"] = step.loss_scale
        gathers = any(name in grads for name in state.get("importance", ()))
        if gathers and not self._overflown(grads, params, state):
            self.observe(grads, params, state)
        return grads

    def transform(
        self, grads: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        """Mask the gradients in scope, after clipping."""
        chosen = {
            name: grads[name].float().contiguous() for name in self.names(params) if name in grads
        }
        if not chosen or self._overflown(chosen, params, state):
            return grads
        masked = self._drawn(chosen, params, state, rng)
        return {**grads, **{name: masked[name].to(grads[name].dtype) for name in chosen}}

    def _drawn(
        self, chosen: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        """Return gradients under a mask that follows from the importance of their entries."""
        if self.refresh == "epoch":
            return self._under_epoch_mask(chosen, state)
        if self.normalise == "rank":
            return self._under_own_ranks(chosen, params, state, rng)
        levels = self._levels_of(chosen, params)
        masked = {
            name: thin(
                gradient,
                levels[name],
                rng.shared("mask", name),
                start=params.first_entry(name),
                scale=self.scale,
            )
            for name, gradient in chosen.items()
        }
        state["kept"] = _share(params, {name: tensor != 0 for name, tensor in masked.items()})
        return masked

    def _overflown(self, grads: Gradients, params: Parameters, state: State) -> bool:
        """Tell whether a loss scaler will skip this step: its gradients say nothing of saliency."""
        if state.get("loss_scale", 1.0) == 1.0:
            return False
        sums = torch.stack([gradient.sum() for gradient in grads.values()])
        return not bool(torch.isfinite(params.summed(sums)).all())

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

    def _under_own_ranks(
        self, chosen: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        """Mask gradients by their own ranks, in place: the fast way."""
        counts = _counts(params, chosen)
        table = self._quantised(bucket_ranks(counts))
        state["kept"] = (counts * table).sum() / (counts.sum().clamp(min=1) * self.levels)
        factors = bucket_factors(table)
        return {
            name: thin_by_bucket(
                gradient,
                factors,
                rng.shared("mask", name),
                start=params.first_entry(name),
                scale=self.scale,
            )
            for name, gradient in chosen.items()
        }

    def _codes(self, roots: Gradients, table: Tensor, params: Parameters) -> Gradients:
        """Return the code of each entry's probability, from the roots of the importance."""
        return self._by_entry(roots, params, lambda q: nearest_codes(q, table))

    def _levels_of(self, roots: Gradients, params: Parameters) -> Gradients:
        """Return each entry's probability as q, from the roots of the importance."""
        return self._by_entry(roots, params, lambda q: q)

    def _by_entry(
        self, roots: Gradients, params: Parameters, change: Callable[[Tensor], Tensor]
    ) -> Gradients:
        if self.normalise == "range":
            shares = range_normalise(list(roots.values()), largest=params.largest)
            return {
                name: change(self._quantised(share))
                for name, share in zip(roots, shares, strict=True)
            }
        counts = _counts(params, roots)
        by_bucket = change(self._quantised(bucket_ranks(counts)))
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


def _counts(params: Parameters, tensors: Gradients) -> Tensor:
    """Count the magnitudes of tensors, and of the parts that other processes hold of them."""
    places = [
        (params.first_entry(name), params.shape(name, tensor)) for name, tensor in tensors.items()
    ]
    return params.summed(bucket_counts(list(tensors.values()), places=places))


def _share(params: Parameters, kept: dict[str, Tensor]) -> Tensor:
    counts = torch.stack([mask.sum() for mask in kept.values()]).sum()
    return params.summed(counts) / sum(params.shape(n, mask).numel() for n, mask in kept.items())


@dataclass(frozen=True)
class RandomMask(UpdateRule):
    """Keep every entry of the gradient with one probability: ``g * Bernoulli(p) / p``.

    Args:
        keep: p, in (0, 1); it is rounded to q/65536 for the draw and divides as such.
        chunk: Entries worked on at a time, which stay in the processor's cache.

    References:
        Xu et al., EMNLP 2021, Child-Tuning-F.
    """

    keep: float = 0.3
    chunk: int = 1 << 18

    name = "child_tuning_f"
    # The gradient is read and written.
    moved = 2.0
    takes_rows = True
    slots = frozenset({"mask"})
    logged = MappingProxyType({"mask/kept": "kept"})

    def transform(
        self, grads: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        """Mask all gradients in place; the same draw on all ranks."""
        if not grads:
            return grads
        kept, drawn, masked = [], 0, {}
        for name, gradient in grads.items():
            masked[name] = gradient.contiguous()
            shape = params.shape(name, gradient)
            rows = touched_rows(
                gradient, shape, counted=lambda count: params.counts_before(count)[1]
            )
            start, size = params.first_entry(name), shape.numel()
            part = masked[name]
            if rows is not None:
                part = gradient.index_select(0, rows)
                # Draws are counted over the touched rows of the whole matrix.
                start, size = params.counts_before(part.numel())
            kept.append(self._thin(part, rng.shared("mask", name), start=start))
            drawn += size
            if rows is not None:
                masked[name].index_copy_(0, rows, part)
        state["kept"] = params.summed(torch.stack(kept).sum()) / max(1, drawn)
        return masked

    def _thin(self, gradient: Tensor, key: int, *, start: int) -> Tensor:
        """Mask and scale a contiguous gradient in place, and count what was kept."""
        q = quantise(torch.tensor(self.keep), p_min=0.0)
        threshold, scale = int(highest_kept(q)), LEVELS / int(q)
        kept = torch.zeros((), dtype=torch.float64, device=gradient.device)
        for piece, drawn in pieces_with_draws(gradient, key, start=start, chunk=self.chunk):
            stays = drawn.float()
            torch.le(stays, threshold, out=stays)
            kept += stays.sum()
            piece.mul_(stays).mul_(scale)
        return kept


@dataclass(frozen=True)
class ChosenMask(UpdateRule):
    """Keep those entries of the blocks' gradient whose squared gradient was largest in an epoch.

    Before training: clip the gradient of each batch tensor by tensor, square it, and add it up. The
    largest ``keep`` of all entries, ranked over all tensors at once, train; the rest of the blocks
    does not. What lies outside the blocks (embeddings, head) trains freely. The importance is let
    go of once the mask is chosen, which takes a byte an entry.

    Args:
        keep: Share of the entries that train, in (0, 1).
        largest_norm: What the gradient of each tensor is clipped to in the pre-pass.

    References:
        Xu et al., EMNLP 2021, Child-Tuning-D.
    """

    keep: float = 0.3
    largest_norm: float = 1.0

    name = "child_tuning_d"
    # The gradient is read and written, and a byte of the mask read.
    moved = 2.25
    takes_rows = True
    slots = frozenset({"mask"})
    logged = MappingProxyType({"mask/kept": "kept"})
    pre_pass = True

    def names(self, params: Parameters) -> list[str]:
        """Return the parameters that the mask covers: all where there are no blocks."""
        return [name for name in params.tensors if name in params.blocks] or list(params.tensors)

    def init(self, params: Parameters) -> State:
        """Start with no importance and no mask."""
        zeros = {
            name: torch.zeros_like(params.tensors[name], dtype=torch.float32)
            for name in self.names(params)
        }
        return {"importance": zeros, "training": {}, "observed": 0}

    def observe(self, grads: Gradients, params: Parameters, state: State) -> None:
        """Add a batch's clipped and squared gradient; once chosen, nothing is left to add to."""
        for name, total in state["importance"].items():
            if name in grads:
                gradient = grads[name].detach().float()
                norm = params.norm(torch.linalg.vector_norm(gradient))
                clipped = gradient * (self.largest_norm / (norm + 1e-6)).clamp(max=1.0)
                total.addcmul_(clipped, clipped)
        state["observed"] += 1

    def begin_epoch(self, params: Parameters, state: State, rng: Streams, *, epoch: int) -> None:
        """Choose the mask before the first epoch; a resumed run has it."""
        if state["training"]:
            return
        if not state["observed"]:
            raise TemperError(
                "child_tuning_d chooses what trains by the squared gradients of one epoch. Call "
                "prepare(batches) once before the first epoch (RobustTrainer does)."
            )
        # Ranked as a whole, which processes that share the weights gather for once.
        importance = [params.gathered(n, total) for n, total in state["importance"].items()]
        kept = inside_top(importance, share=self.keep)
        state["training"] = {
            name: params.part(name, mask).clone()
            for name, mask in zip(state["importance"], kept, strict=True)
        }
        entries = sum(mask.numel() for mask in kept)
        state["kept"] = sum(int(mask.sum()) for mask in kept) / entries
        state["importance"] = {}

    def transform(
        self, grads: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        """Set the gradient of what does not train to zero, in place."""
        if not state["training"]:
            raise TemperError(
                "child_tuning_d has no mask yet. Call prepare(batches) once, and begin_epoch(0) "
                "before the first step (RobustTrainer does both)."
            )
        for name, mask in state["training"].items():
            if name in grads:
                # A product with bytes is several times faster than masked_fill_.
                grads[name].mul_(mask.view(torch.uint8))
        return grads


def inside_top(values: Sequence[Tensor], *, share: float) -> list[Tensor]:
    """Mark the largest entries of several tensors.

    Args:
        values: Any shapes, on one device.
        share: Share of all entries that is marked, in [0, 1]: exactly ``round(share * n)`` of them;
            of equal ones those that stand first.

    Returns:
        Booleans of the same shapes, true inside the top.

    Raises:
        TemperError: If a value is not finite.
    """
    flat = torch.cat([value.flatten() for value in values])
    if not bool(torch.isfinite(flat).all()):
        raise TemperError(
            "The squared gradients of the pre-pass are not finite, so they rank nothing. Look at "
            "the model's weights, or train in fp32."
        )
    count = round(share * len(flat))
    inside = torch.zeros_like(flat, dtype=torch.bool)
    if count:
        lowest = flat.kthvalue(len(flat) - count + 1).values
        above = flat > lowest
        ties = (flat == lowest).nonzero().squeeze(1)
        inside[above] = True
        inside[ties[: count - int(above.sum())]] = True
    parts = torch.split(inside, [value.numel() for value in values])
    return [part.view_as(value).clone() for part, value in zip(parts, values, strict=True)]
