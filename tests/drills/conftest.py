"""Fixtures of all drills, created once."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.drills.commands import make_project


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("drills") / "project")
