"""Perspectives: ways of looking at a classifier, one file each.

Names are imported on first use: what perspectives there are is known without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from temper.evaluation.perspectives.contract import NEEDS, Perspective
    from temper.evaluation.perspectives.registry import (
        PERSPECTIVES,
        defaults,
        listing,
        names,
        perspective,
        readers,
    )

_PUBLIC = {
    "NEEDS": "contract",
    "PERSPECTIVES": "registry",
    "Perspective": "contract",
    "defaults": "registry",
    "listing": "registry",
    "names": "registry",
    "perspective": "registry",
    "readers": "registry",
}

__all__ = [
    "NEEDS",
    "PERSPECTIVES",
    "Perspective",
    "defaults",
    "listing",
    "names",
    "perspective",
    "readers",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'temper.evaluation.perspectives' has no attribute {name!r}")
    module = importlib.import_module(f"temper.evaluation.perspectives.{_PUBLIC[name]}")
    return getattr(module, name)
