"""What a method adds to the embeddings, pass after pass, for tests that replay it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from temper.models.network import Network


@dataclass(frozen=True)
class Pass:
    """One forward: its perturbation, where, and whether the embeddings had a gradient."""

    delta: Tensor | None
    site: str
    detached: bool
    seed: int


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[Pass]:
    """Note every forward of every network."""
    noted: list[Pass] = []
    plain = Network.logits

    def logits(self: Network, batch: Any, **settings: Any) -> Tensor:
        delta = settings.get("delta")
        noted.append(
            Pass(
                None if delta is None else delta.detach().clone(),
                settings.get("site", "word"),
                settings.get("detached", False),
                settings["seed"],
            )
        )
        return plain(self, batch, **settings)

    monkeypatch.setattr(Network, "logits", logits)
    return noted


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
