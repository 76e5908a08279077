"""Contexts that switch a model's mode, its precision, or warnings."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from temper.lazy import torch

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Set training or evaluation mode inside this context; then restore each module's mode."""
    modes = [(module, module.training) for module in model.modules()]
    # Setting a mode that is already set takes a millisecond, in every pass of a service.
    if any(mode is not training for _, mode in modes):
        model.train(training)
    try:
        yield
    finally:
        for module, mode in modes:
            if module.training is not mode:
                module.training = mode


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings of libraries and the bars of Transformers inside this context."""
    from huggingface_hub import utils as hub
    from transformers.utils import logging as transformers_logging

    # logging has no getter for the level that other code may have set.
    level = logging.root.manager.disable
    logging.disable(max(level, logging.WARNING))
    bars = transformers_logging.is_progress_bar_enabled()
    downloads = not hub.are_progress_bars_disabled()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if bars:
                # Transformers' bar would break ours. The call also hides those of downloads.
                transformers_logging.disable_progress_bar()
                if downloads:
                    hub.enable_progress_bars()
            yield
    finally:
        logging.disable(level)
        if bars:
            transformers_logging.enable_progress_bar()
            if not downloads:
                hub.disable_progress_bars()


@contextmanager
def in_single(model: nn.Module) -> Iterator[None]:
    """Convert half-precision weights and buffers to fp32 inside this context.

    Afterwards the original tensors are back. Meanwhile both are in memory. Weights in fp32 or fp64
    are not changed.
    """
    tensors = [*model.parameters(), *model.buffers()]
    half = [tensor for tensor in tensors if tensor.dtype in (torch.bfloat16, torch.float16)]
    saved = [item.data for item in half]
    try:
        for item in half:
            item.data = item.data.float()
        yield
    finally:
        for item, data in zip(half, saved, strict=True):
            item.data = data
