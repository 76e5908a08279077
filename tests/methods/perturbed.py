"""What a method adds to the embeddings, pass after pass, for tests that replay it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
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
    found: list[Pass] = []
    plain = Network.logits

    def noted(self: Network, batch: Any, **settings: Any) -> Tensor:
        delta = settings.get("delta")
        found.append(
            Pass(
                None if delta is None else delta.detach().clone(),
                settings.get("site", "word"),
                settings.get("detached", False),
                settings["seed"],
            )
        )
        return plain(self, batch, **settings)

    monkeypatch.setattr(Network, "logits", noted)
    return found
