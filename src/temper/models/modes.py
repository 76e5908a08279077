"""Hold a model in training or evaluation mode for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Put a model in a mode inside the block, and give each module its own back after it.

    Args:
        model: The network.
        training: Whether it trains.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
