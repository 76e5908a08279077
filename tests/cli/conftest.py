"""Fixtures: a tiny model, tiny data and a run on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.calls import succeed
from tests.cli.tiny_project import tiny_data, tiny_model

__all__ = ["tiny_data", "tiny_model"]


@pytest.fixture(scope="session")
def trained(tiny_model: Path, tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of one step; copy it before you write to it."""
    out = tmp_path_factory.mktemp("trained") / "run"
    succeed(
        "train", "--model", tiny_model, "--data", tiny_data / "reviews", "--method", "plain",
        "--set", "train.max_steps=1", "--max-length", "32", "--device", "cpu", "--out", out,
    )  # fmt: skip
    return out
