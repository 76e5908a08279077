"""Set the dropout rates of a network by example and channel, at its dropout sites.

Every ``nn.Dropout`` becomes a site: its class is changed in place, so that its identity, its hooks
and ``module.p`` (which Transformers reads for attention) stay. ``remove_hooks`` restores the class.
In a network without dropout modules the outputs of the blocks are the sites.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from temper.errors import ModelError
from temper.functional.masks import LEVELS, below, quantize, random_levels
from temper.functional.precision import at_least_single
from temper.models.blocks import remove_hooks
from temper.models.passes import DropoutPlan, Recording, SiteKey
from temper.seeding import derive_seed, generator


@dataclass
class SiteContext:
    """The plan for a network's dropout sites in one forward and its backward, and the record.

    Args:
        mask: Tokens that are not padding, of the repeated batch [K*B, T].
        plan: The dropout rates; None keeps the model's own dropout.
        log: Is filled with shapes and gradient norms; None records nothing.
        time_first: Whether hidden states are [T, B, D] (XLNet).
        totals: Site -> number of its calls; set when the forward has ended.
    """

    mask: Tensor | None = None
    plan: DropoutPlan | None = None
    log: Recording | None = None
    time_first: bool = False
    totals: dict[str, int] | None = None


class _Thinned(torch.autograd.Function):
    """Inverted dropout with a given boolean mask; it keeps only one byte per entry for backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(keep, factor)
        return x * factor.to(x.dtype) * keep

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        keep, factor = ctx.saved_tensors
        return grads[0] * factor.to(grads[0].dtype) * keep, None, None


def thinned(x: Tensor, rate: Tensor, draws: Sequence[torch.Generator]) -> Tensor:
    """Apply inverted dropout to x [K*B, ...]; its expected value is x.

    ``rate`` in [0, 1) is broadcastable to x. ``draws`` has one generator per pass, K in all.
    """
    entries = x.numel() // len(draws)
    levels = (
        torch.cat([random_levels(entries, draw) for draw in draws])
        if len(draws) > 1
        else (random_levels(entries, draws[0]))
    )
    q = quantize(1 - rate, p_min=0.0)
    factor = LEVELS / q.to(at_least_single(x).dtype)
    dropped: Tensor = _Thinned.apply(x, below(levels.view(x.shape), q), factor)  # type: ignore[no-untyped-call]
    return dropped


class DropoutSite(nn.Dropout):
    """A dropout layer whose rate its network's `SiteControl` sets."""

    control: SiteControl
    site_name: str

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        # Without a plan, as nn.Dropout.
        if not self.training or not self.control.active:
            return super().forward(input)
        return self.control.apply(self.site_name, input, self.p, super().forward)


class SiteControl:
    """Applies the dropout plan of the current forward to the sites of one network."""

    def __init__(self, model: nn.Module, blocks: Sequence[tuple[str, nn.Module]]) -> None:
        self.context = SiteContext()
        self._calls: dict[str, int] = {}
        self._hooks: list[RemovableHandle] = []
        self._blocks = list(blocks)
        self._saved_rates: dict[nn.Dropout, float] = {}
        self.modules: dict[str, nn.Dropout] = {}
        self.taken = any(isinstance(module, DropoutSite) for module in model.modules())
        for name, module in model.named_modules():
            if type(module) is nn.Dropout:
                module.__class__ = DropoutSite
                module.control, module.site_name = self, name  # type: ignore[assignment]
                self.modules[name] = module

    @property
    def active(self) -> bool:
        """Whether this forward has a plan or a log; else the sites are ordinary dropout layers."""
        return self.context.plan is not None or self.context.log is not None

    def use_blocks(self) -> None:
        """Make the outputs of the blocks dropout sites, for a network without dropout layers."""
        for name, block in self._blocks:
            self._hooks.append(block.register_forward_hook(partial(self._at_block, name)))

    def _at_block(self, name: str, module: nn.Module, _: Any, output: Any) -> Any:
        if not module.training or not self.active:
            return None
        if isinstance(output, tuple):
            return (self.apply(name, output[0], 0.0, lambda x: x), *output[1:])
        return self.apply(name, output, 0.0, lambda x: x)

    def begin(self, context: SiteContext) -> None:
        """Use the plan and the log of ``context`` until the next ``begin``."""
        for module, rate in self._saved_rates.items():
            module.p = rate
        self._saved_rates = {}
        self.context, self._calls = context, {}
        plan = context.plan
        if plan is None or plan.fixed is None or plan.only is not None:
            return
        if len(set(plan.fixed)) == 1:
            for module in self.modules.values():
                self._saved_rates[module] = module.p
                module.p = plan.fixed[0]

    def end_of_forward(self) -> None:
        """Mark the end of the forward; later calls of sites are recomputations in the backward."""
        self.context.totals, self._calls = self._calls, {}

    def reset(self) -> None:
        self.begin(SiteContext())

    def remove_hooks(self) -> None:
        """Restore class and rate of all dropout layers, and remove all hooks."""
        self.reset()
        for module in self.modules.values():
            if isinstance(module, DropoutSite):
                del module.control, module.site_name
                module.__class__ = nn.Dropout  # type: ignore[assignment]
        self.modules = {}
        remove_hooks(self._hooks)

    def apply(self, name: str, x: Tensor, own: float, plain: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the output of one site for x: by the plan, or else by ``plain``, its own layer.

        ``own`` is the layer's own rate. Shape and gradient norms are logged if requested.
        """
        now, call = self.context, self._calls.get(name, 0)
        if now.totals is not None and now.totals.get(name, 0) > 1:
            raise ModelError(
                f"Dropout site {name!r} is called several times per forward (shared blocks) and "
                "gradient checkpointing recomputes it in a different order, so its masks cannot be "
                "replayed. Switch gradient checkpointing off, or use a method without "
                "adaptive dropout."
            )
        self._calls[name] = call + 1
        key = (name, call)
        time_first = x.dim() == 3 and now.time_first
        rows = x.shape[1] if time_first else x.shape[0]
        # Attention probabilities and relative positions have other shapes; they keep their rate.
        fits = x.dim() in (2, 3) and now.mask is not None and rows == now.mask.shape[0]
        dropped = _dropped(now.plan, key, x, own, time_first=time_first) if fits else None
        y = plain(x) if dropped is None else dropped
        if now.log is not None:
            if now.totals is None:
                now.log.shapes[key] = tuple(y.shape)
            if fits and now.log.channel_norms and y.requires_grad:
                y.register_hook(partial(_record, now.log, key, now.mask, time_first))  # type: ignore[no-untyped-call]
        return y


def _record(
    log: Recording, key: SiteKey, mask: Tensor | None, time_first: bool, gradient: Tensor
) -> None:
    # The first backward is that of the task's loss; later ones include other terms.
    if key in log.norms:
        return
    g = at_least_single(gradient.detach())
    if g.dim() == 2:
        log.norms[key] = g.abs()
        return
    g = g.transpose(0, 1) if time_first else g
    if mask is not None and mask.shape == g.shape[:2]:
        g = g * mask.unsqueeze(-1)
    log.norms[key] = torch.linalg.vector_norm(g, dim=1)


def _dropped(
    plan: DropoutPlan | None, key: SiteKey, x: Tensor, own: float, *, time_first: bool
) -> Tensor | None:
    """Apply the plan's dropout to x; return None if the plan leaves the site to the model."""
    if plan is None or (plan.only is not None and key not in plan.only):
        return None
    x = x.transpose(0, 1) if time_first else x
    rate = _rate(plan, key, x, own)
    if rate is None:
        return None
    draws = [
        generator(derive_seed(plan.seed, "site", *key, plan.first + k), x.device)
        for k in range(plan.copies)
    ]
    y = thinned(x.contiguous(), rate, draws)
    return y.transpose(0, 1) if time_first else y


def _rate(plan: DropoutPlan, key: SiteKey, x: Tensor, own: float) -> Tensor | None:
    """Return the plan's rates at a site, broadcastable to x [K*B, ...]; None for no dropout."""
    shape = (x.shape[0], *[1] * (x.dim() - 1))
    if plan.rates is not None:
        if key not in plan.rates:
            raise ModelError(
                f"Dropout site {key[0]!r} is called in the adversarial pass but was not in the "
                "clean pass, so it has no adaptive rate. Use adaptive='uniform' for this model."
            )
        rates = plan.rates[key]
        if rates is not None:
            stacked = rates.repeat(plan.copies, 1)
            return stacked.unsqueeze(1) if x.dim() == 3 else stacked
    elif plan.fixed is not None:
        by_pass = torch.tensor(plan.fixed, device=x.device)
        return by_pass.repeat_interleave(shape[0] // plan.copies).view(shape)
    return torch.full(shape, own, device=x.device) if own > 0 else None
