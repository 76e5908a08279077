"""Fixtures: a folder with a tiny model and tiny data."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.tiny_project import make_data, make_model


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    make_model(folder / "model")
    make_data(folder / "data")
    return folder
