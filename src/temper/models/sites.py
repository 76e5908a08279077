"""Dropout sites: places of a network whose rates a plan sets, by example and by channel.

Every ``nn.Dropout`` becomes a site by changing its class in place, so that its identity, its hooks
and ``module.p`` (which Transformers reads for attention probabilities) stay; releasing changes the
class back. A network without dropout modules gets sites at its blocks' outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from temper.errors import ModelError
from temper.functional.masks import LEVELS, below, quantise, random_levels
from temper.functional.precision import at_least_single
from temper.seeding import derive_seed, generator

SiteKey = tuple[str, int]
"""A site's name and which of its calls within one forward (shared blocks are called often)."""


@dataclass(frozen=True)
class DropoutPlan:
    """Say at which rates the sites drop in a batched forward of K passes.

    Args:
        seed: Where the masks come from; pass k at a site draws from (seed, site, k), so that K
            passes in one forward equal K forwards.
        copies: K, how often the batch is stacked.
        first: Number of the first pass, 0 unless the passes are run one by one.
        rates: A rate per site, example and channel [B, D]; a site that maps to None, and every
            site where ``rates`` itself is None, keeps the model's own rate.
        fixed: One rate for each pass, the same at all sites; K floats.
        only: Sites that the plan applies to; None for all.
    """

    seed: int
    copies: int
    first: int = 0
    rates: dict[SiteKey, Tensor | None] | None = None
    fixed: tuple[float, ...] | None = None
    only: frozenset[SiteKey] | None = None


@dataclass
class SiteLog:
    """Shapes of the sites in one forward, and gradients by channel once backward has run."""

    order: list[SiteKey] = field(default_factory=list)
    shapes: dict[SiteKey, tuple[int, ...]] = field(default_factory=dict)
    channel_norms: dict[SiteKey, Tensor] = field(default_factory=dict)


@dataclass
class Recording:
    """What to note during a forward and its backward.

    Args:
        channel_norms: Whether to note the gradient norm of every dropout site by channel (filled
            by backward).

    After the forward ``embeddings`` [B, T, D] holds the unperturbed, detached embeddings at the
    perturbed place.
    """

    channel_norms: bool = False
    embeddings: Tensor | None = None
    sites: SiteLog = field(default_factory=SiteLog)


@dataclass(frozen=True)
class SiteContext:
    """What holds for one forward, kept for the backward that recomputes its blocks.

    Args:
        mask: Real tokens of the stacked batch [K*B, T].
        plan: The rates.
        log: Where the sites were recorded.
        norms: Whether gradient norms are recorded.
        time_first: Whether hidden states are [T, B, D].
        totals: How often each site was called.
    """

    mask: Tensor | None
    plan: DropoutPlan | None
    log: SiteLog | None
    norms: bool
    time_first: bool
    totals: dict[str, int] | None


class _Thinned(torch.autograd.Function):
    """Inverted dropout by a boolean mask: backward keeps one byte an entry."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(keep, factor)
        return x * factor.to(x.dtype) * keep

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        keep, factor = ctx.saved_tensors
        return grads[0] * factor.to(grads[0].dtype) * keep, None, None


def thinned(x: Tensor, rate: Tensor, draws: Sequence[torch.Generator]) -> Tensor:
    """Drop units at given rates and scale what is kept, unit by unit, so that the mean is x.

    Args:
        x: [K*B, ...], pass after pass.
        rate: Broadcastable to x, in [0, 1).
        draws: One generator a pass, K of them.

    Returns:
        The shape of x.
    """
    share = x.numel() // len(draws)
    levels = (
        torch.cat([random_levels(share, draw) for draw in draws])
        if len(draws) > 1
        else (random_levels(share, draws[0]))
    )
    q = quantise(1 - rate, p_min=0.0)
    factor = LEVELS / q.to(at_least_single(x).dtype)
    dropped: Tensor = _Thinned.apply(x, below(levels.view(x.shape), q), factor)  # type: ignore[no-untyped-call]
    return dropped


class DropoutSite(nn.Dropout):
    """A dropout layer that asks its network's control what to do."""

    control: SiteControl
    site_name: str

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Drop at the planned rates, or as ``nn.Dropout`` where nothing is planned."""
        if not self.training or not self.control.active:
            return super().forward(input)
        return self.control.apply(self.site_name, input, self.p, super().forward)


class SiteControl:
    """Hold the plan of the present forward and hand it to the sites of one network.

    Args:
        model: The network whose dropout layers become sites.
        blocks: Blocks, whose outputs become sites where no dropout layer is called on hidden
            states.
    """

    def __init__(self, model: nn.Module, blocks: Sequence[tuple[str, nn.Module]]) -> None:
        self.active = False
        self.log: SiteLog | None = None
        self.plan: DropoutPlan | None = None
        self._mask: Tensor | None = None
        self._calls: dict[str, int] = {}
        self._totals: dict[str, int] | None = None
        self._norms = False
        self._time_first = False
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._blocks = list(blocks)
        self._attention_rates: dict[nn.Dropout, float] = {}
        self.modules: dict[str, nn.Dropout] = {}
        self.taken = any(isinstance(module, DropoutSite) for module in model.modules())
        for name, module in model.named_modules():
            if type(module) is nn.Dropout:
                module.__class__ = DropoutSite
                module.control, module.site_name = self, name  # type: ignore[assignment]
                self.modules[name] = module

    def use_blocks(self) -> None:
        """Make the blocks' outputs sites, for a network that calls no dropout layer."""
        for name, block in self._blocks:
            self._hooks.append(block.register_forward_hook(self._block_hook(name)))

    def _block_hook(self, name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, _: Any, output: Any) -> Any:
            if not module.training or not self.active:
                return None
            if isinstance(output, tuple):
                return (self.apply(name, output[0], 0.0, lambda x: x), *output[1:])
            return self.apply(name, output, 0.0, lambda x: x)

        return hook

    def begin(
        self,
        mask: Tensor,
        *,
        plan: DropoutPlan | None,
        log: SiteLog | None,
        norms: bool,
        time_first: bool,
    ) -> None:
        """Set what the sites do until the next ``begin``; backward may recompute blocks under it.

        Args:
            mask: Real tokens of the stacked batch [K*B, T].
            plan: The rates; None leaves every site alone.
            log: Where to record the sites; None records nothing.
            norms: Whether to record gradient norms by channel during backward.
            time_first: Whether hidden states are [T, B, D] (XLNet).
        """
        self._restore_rates()
        self.plan, self.log, self._norms = plan, log, norms
        self._mask, self._calls, self._time_first = mask, {}, time_first
        self._totals = None
        self.active = plan is not None or log is not None
        if plan is None or plan.fixed is None or plan.only is not None:
            return
        if len(set(plan.fixed)) == 1:
            for module in self.modules.values():
                self._attention_rates[module] = module.p
                module.p = plan.fixed[0]

    def end_of_forward(self) -> None:
        """Tell the forward's calls from those of a backward that recomputes blocks."""
        self._totals, self._calls = self._calls, {}

    def context(self) -> SiteContext:
        """Return what holds for the forward that has just ended."""
        return SiteContext(
            self._mask, self.plan, self.log, self._norms, self._time_first, self._totals
        )

    def resume(self, context: SiteContext) -> None:
        """Let a backward recompute blocks as they were in the forward of a context."""
        assert context.mask is not None
        self.begin(
            context.mask,
            plan=context.plan,
            log=context.log,
            norms=context.norms,
            time_first=context.time_first,
        )
        self._totals = context.totals

    def rest(self) -> None:
        """Leave every site alone again."""
        self._restore_rates()
        self.active, self.plan, self.log, self._mask = False, None, None, None

    def _restore_rates(self) -> None:
        for module, rate in self._attention_rates.items():
            module.p = rate
        self._attention_rates = {}

    def release(self) -> None:
        """Give every dropout layer its class and its rate back, and drop all hooks."""
        self._restore_rates()
        for module in self.modules.values():
            if isinstance(module, DropoutSite):
                del module.control, module.site_name
                module.__class__ = nn.Dropout  # type: ignore[assignment]
        self.modules = {}
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.rest()

    def _key(self, name: str) -> SiteKey:
        if self._totals is not None and self._totals.get(name, 0) > 1:
            raise ModelError(
                f"Dropout site {name!r} is called several times a forward (shared blocks) and "
                "gradient checkpointing recomputes it in another order, so its masks cannot be "
                "replayed. Switch gradient checkpointing off, or use a method without "
                "adaptive dropout."
            )
        call = self._calls.get(name, 0)
        self._calls[name] = call + 1
        return (name, call)

    def apply(self, name: str, x: Tensor, own: float, plain: Callable[[Tensor], Tensor]) -> Tensor:
        """Do what the plan says at one site; record its output's shape and gradient where asked.

        Sites whose output has no row for each row of the batch (attention probabilities, relative
        positions) keep the model's own rate.
        """
        key = self._key(name)
        time_first = x.dim() == 3 and self._time_first
        rows = x.shape[1] if time_first else x.shape[0]
        fits = x.dim() in (2, 3) and self._mask is not None and rows == self._mask.shape[0]
        y = self._drop(key, x, own, plain, time_first) if fits else plain(x)
        if self.log is not None:
            if self._totals is None:
                self.log.order.append(key)
                self.log.shapes[key] = tuple(y.shape)
            if fits and self._norms and y.requires_grad:
                y.register_hook(self._recorder(key, self.log, time_first))  # type: ignore[no-untyped-call]
        return y

    def _recorder(self, key: SiteKey, log: SiteLog, time_first: bool) -> Callable[[Tensor], None]:
        mask = self._mask

        def record(gradient: Tensor) -> None:
            # The first backward is the task's; later ones bring other terms with them.
            if key in log.channel_norms:
                return
            g = at_least_single(gradient.detach())
            if g.dim() == 2:
                log.channel_norms[key] = g.abs()
                return
            g = g.transpose(0, 1) if time_first else g
            if mask is not None and mask.shape == g.shape[:2]:
                g = g * mask.unsqueeze(-1)
            log.channel_norms[key] = torch.linalg.vector_norm(g, dim=1)

        return record

    def _drop(
        self,
        key: SiteKey,
        x: Tensor,
        own: float,
        plain: Callable[[Tensor], Tensor],
        time_first: bool,
    ) -> Tensor:
        plan = self.plan
        if plan is None or (plan.only is not None and key not in plan.only):
            return plain(x)
        rows = x.shape[1] if time_first else x.shape[0]
        rate = self._rate(plan, key, (rows, *[1] * (x.dim() - 1)), own, x.device)
        if rate is None:
            return plain(x)
        draws = [
            generator(derive_seed(plan.seed, "site", *key, plan.first + k), x.device)
            for k in range(plan.copies)
        ]
        if time_first:
            return thinned(x.transpose(0, 1).contiguous(), rate, draws).transpose(0, 1)
        return thinned(x.contiguous(), rate, draws)

    def _rate(
        self,
        plan: DropoutPlan,
        key: SiteKey,
        shape: tuple[int, ...],
        own: float,
        device: torch.device,
    ) -> Tensor | None:
        if plan.rates is not None:
            if key not in plan.rates:
                raise ModelError(
                    f"Dropout site {key[0]!r} is called in the attacked pass but was not in the "
                    "clean pass, so it has no adaptive rate. Use adaptive='uniform' for this model."
                )
            rates = plan.rates[key]
            if rates is not None:
                stacked = rates.repeat(plan.copies, 1)
                return stacked.unsqueeze(1) if len(shape) == 3 else stacked
        elif plan.fixed is not None:
            each = torch.tensor(plan.fixed, device=device)
            return each.repeat_interleave(shape[0] // plan.copies).view(shape)
        return torch.full(shape, own, device=device) if own > 0 else None
