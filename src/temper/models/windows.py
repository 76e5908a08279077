"""Run a classifier on texts in windows: hooks split a batch into windows and pool their logits."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from temper.errors import ModelError
from temper.functional.precision import at_least_single
from temper.models.blocks import remove_hooks, unwrap
from temper.models.probing import innermost
from temper.types import POOLS, Pool, Windows

SETTING = "text_windows"
"""Key of the window settings in a model's config, with which they are saved."""
_HOOKS = "text_window_hooks"


class TextWindows(NamedTuple):
    """The window settings of a model, and the number of tokens of a window."""

    windows: Windows
    max_length: int


def set_windows(model: nn.Module, windows: Windows | None, *, max_length: int = 0) -> None:
    """Make a classifier accept batches [B, W, T] of texts in W windows, with one output per text.

    Batches [B, T] still work. The setting is saved in the model's config. None undoes it.
    """
    inner: Any = innermost(unwrap(model))
    remove_hooks(vars(inner).setdefault(_HOOKS, []))
    config = getattr(inner, "config", None)
    if config is not None and hasattr(config, SETTING):
        delattr(config, SETTING)
    if windows is None:
        return
    if config is not None:
        setattr(config, SETTING, {**asdict(windows), "max_length": max_length})
    pooling = _Pooling(windows.pool)
    vars(inner)[_HOOKS] += [
        inner.register_forward_pre_hook(pooling.split, with_kwargs=True),
        inner.register_forward_hook(pooling.join),
    ]


def windows_of(model: nn.Module) -> TextWindows | None:
    """Return the window settings in a model's config; None if it has none."""
    given = getattr(getattr(innermost(unwrap(model)), "config", None), SETTING, None)
    if given is None:
        return None
    try:
        result = dict(given)
        length = result.pop("max_length")
        windows = Windows(**result)
        numbers = (length, windows.stride, windows.max_windows)
        whole = all(type(number) is int for number in numbers)
        fits = whole and 0 <= windows.stride < length and windows.max_windows >= 1
        if not fits or windows.pool not in POOLS:
            raise ValueError
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"`{SETTING}` of the model's config.json must have `max_length`, `stride`, `pool` "
            f"({' or '.join(POOLS)}) and `max_windows`, got {given}. Take it out, or copy the "
            "model again."
        ) from error
    return TextWindows(windows, length)


def pooled(logits: Tensor, real: Tensor, pool: Pool) -> Tensor:
    """Pool the logits [B, W, C] of each text's windows to [B, C], in at least fp32.

    ``real`` [B, W] is False for windows that are only padding.

    Example:
        >>> logits = torch.tensor([[[1.0], [5.0], [9.0]]])
        >>> real = torch.tensor([[True, True, False]])
        >>> pooled(logits, real, "mean").item(), pooled(logits, real, "max").item()
        (3.0, 5.0)
    """
    logits, inside = at_least_single(logits), real.unsqueeze(-1)
    if pool == "max":
        return logits.masked_fill(~inside, -torch.inf).amax(1)
    return logits.masked_fill(~inside, 0.0).sum(1) / inside.sum(1).clamp(min=1)


class _Pooling:
    """The two hooks of a model: `split` before the forward, and `join` after it."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.real: Tensor | None = None

    def split(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        ids = kwargs.get("input_ids")
        self.real = None
        if not isinstance(ids, Tensor) or ids.dim() != 3:
            return None
        mask = kwargs.get("attention_mask")
        mask = torch.ones_like(ids) if mask is None else mask
        self.real = mask.bool().any(-1)
        # A text with fewer windows than the others is filled up. Attention to no token at all is
        # NaN in some kernels, so such a window attends to its first padding token.
        first = torch.zeros_like(mask)
        first[..., 0] = (~self.real).to(mask.dtype)
        kwargs = {**kwargs, "attention_mask": mask + first}
        return args, {
            name: value.flatten(0, 1)
            if isinstance(value, Tensor) and value.shape == ids.shape
            else value
            for name, value in kwargs.items()
        }

    def join(self, _: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        real, self.real = self.real, None
        if real is None:
            return None
        if isinstance(output, Tensor):
            return pooled(output.reshape(*real.shape, -1), real, self.pool)
        output.logits = pooled(output.logits.reshape(*real.shape, -1), real, self.pool)
        for name in ("hidden_states", "encoder_hidden_states"):
            layers = getattr(output, name, None)
            if layers:
                texts = (layer.reshape(len(real), -1, layer.shape[-1]) for layer in layers)
                setattr(output, name, tuple(texts))
        return output
