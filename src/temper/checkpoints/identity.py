"""Hashes that identify model weights and settings."""

from __future__ import annotations

import hashlib
import json
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import temper
from temper.checkpoints.folder import RUN, TRACKED

CHUNK = 1 << 20
MODEL_FILES = {".safetensors", ".bin", ".json", ".txt", ".model"}
# Files that Temper writes next to a model's files do not change its weights.
CALIBRATION = "calibration.json"
RECORDS = {
    RUN,
    TRACKED,
    "scores.json",
    "table.json",
    "study.json",
    CALIBRATION,
    "export.json",
}
CALIBRATION_ARRAYS = "calibration-*.safetensors"
"""Arrays of a calibration, ignored by `model_identity`: they do not change the weights."""


def model_identity(name: str) -> str:
    """Hash the weights and configs in a folder; return a name that is not a folder unchanged."""
    folder = Path(name)
    if not folder.is_dir():
        return name
    state = hashlib.blake2b(digest_size=16)
    for file in sorted(folder.iterdir()):
        written = file.name in RECORDS or file.match(CALIBRATION_ARRAYS)
        if file.is_file() and file.suffix in MODEL_FILES and not written:
            state.update(repr((file.name, file.stat().st_size)).encode())
            with file.open("rb") as stream:
                while chunk := stream.read(CHUNK):
                    state.update(chunk)
    return state.hexdigest()


def digest(content: Any) -> str:
    """Hash JSON content to 12 hexadecimal digits; the order of keys does not matter.

    Example:
        >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
        True
    """
    text = json.dumps(content, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


# Cached, because every checkpoint of a run records them.
_version = cache(version)


def versions() -> dict[str, str]:
    """Return the versions of the libraries that affect a run's numbers."""
    installed = {name: _version(name) for name in ("torch", "transformers", "peft", "datasets")}
    return {"python": platform.python_version(), "temper": temper.__version__, **installed}
