"""Networks as the forward stage sees them, and the models that Transformers and PEFT load.

Names are imported on first use: what models are called is known without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from temper.models.network import Network, Parameters, Recording
    from temper.models.sites import DropoutPlan

_PUBLIC = {
    "DropoutPlan": "sites",
    "Network": "network",
    "Parameters": "network",
    "Recording": "network",
}

__all__ = ["DropoutPlan", "Network", "Parameters", "Recording"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'temper.models' has no attribute {name!r}")
    return getattr(importlib.import_module(f"temper.models.{_PUBLIC[name]}"), name)
