"""Perspectives: ways of looking at a classifier, one file each.

Names are imported on first use: what perspectives there are is known without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from temper.importing import on_first_use

if TYPE_CHECKING:
    from temper.evaluation.perspectives.contract import NEEDS, Perspective
    from temper.evaluation.perspectives.registry import (
        defaults,
        listing,
        names,
        perspective,
        perspectives,
        register,
        register_all,
        registered_for_a_while,
    )

_PUBLIC = {
    "NEEDS": "contract",
    "perspectives": "registry",
    "Perspective": "contract",
    "defaults": "registry",
    "listing": "registry",
    "names": "registry",
    "perspective": "registry",
    "register": "registry",
    "register_all": "registry",
    "registered_for_a_while": "registry",
}

__all__ = [
    "NEEDS",
    "Perspective",
    "defaults",
    "listing",
    "names",
    "perspective",
    "perspectives",
    "register",
    "register_all",
    "registered_for_a_while",
]

__getattr__ = on_first_use(__name__, _PUBLIC)
