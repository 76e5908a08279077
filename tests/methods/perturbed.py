"""Record the perturbation that a method adds to the embeddings in each pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from temper.models.network import Network


@contextmanager
def recorded_deltas() -> Iterator[list[Tensor]]:
    """Note the delta [B, T, D] of every forward in the block; an empty tensor for none."""
    deltas: list[Tensor] = []
    plain = Network.logits

    def logits(self: Network, batch: Any, **settings: Any) -> Tensor:
        delta = settings.get("delta")
        deltas.append(torch.empty(0) if delta is None else delta.detach().clone())
        return plain(self, batch, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Network, "logits", logits)
        yield deltas


@pytest.fixture
def deltas() -> Iterator[list[Tensor]]:
    """Note the delta of every forward of a test."""
    with recorded_deltas() as noted:
        yield noted
