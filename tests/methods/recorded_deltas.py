"""What a method added to the embeddings, call after call: what references take over unexplained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from temper.models.network import Network


@contextmanager
def recorded_deltas() -> Iterator[list[Tensor]]:
    """Note the delta [B, T, D] of every forward through a network; an empty tensor for none."""
    found: list[Tensor] = []
    plain = Network.logits

    def noting(self: Network, *args: Any, **settings: Any) -> Tensor:
        delta = settings.get("delta")
        found.append(torch.empty(0) if delta is None else delta.detach().clone())
        return plain(self, *args, **settings)

    Network.logits = noting  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Network.logits = plain  # type: ignore[method-assign]
