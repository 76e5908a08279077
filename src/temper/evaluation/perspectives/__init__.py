"""Perspectives: ways of looking at a classifier, one file each.

Names are imported on first use: what perspectives there are is known without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from temper.importing import on_first_use

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

__getattr__ = on_first_use(__name__, _PUBLIC)
