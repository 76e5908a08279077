"""Hold a model in a mode, or its weights in another precision, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from temper.lazy import torch

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Put a model in a mode inside the block, and give each module its own back after it.

    Args:
        model: The network.
        training: Whether it trains.
    """
    modes = [(module, module.training) for module in model.modules()]
    # Setting what is set already takes a millisecond, which a service pays at every pass.
    if any(mode is not training for _, mode in modes):
        model.train(training)
    try:
        yield
    finally:
        for module, mode in modes:
            if module.training is not mode:
                module.training = mode


@contextmanager
def in_single(model: nn.Module) -> Iterator[None]:
    """Hold weights and buffers in half precision in single precision inside the block.

    Afterwards each is the memory that it was, bit for bit. Nothing else is touched, so a model in
    fp32 or fp64 stays as it is.

    Args:
        model: The network; the block holds its half-precision weights twice, once of double size.
    """
    tensors = [*model.parameters(), *model.buffers()]
    half = [each for each in tensors if each.dtype in (torch.bfloat16, torch.float16)]
    saved = [each.data for each in half]
    try:
        for each in half:
            each.data = each.data.float()
        yield
    finally:
        for each, data in zip(half, saved, strict=True):
            each.data = data
