"""Networks as the forward stage sees them, and the models that Transformers and PEFT load.

Names are imported on first use, so that the names of models are available without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from temper.importing import on_first_use

if TYPE_CHECKING:
    from temper.models.network import Network, Parameters
    from temper.models.passes import DropoutPlan, Recording

_PUBLIC = {
    "DropoutPlan": "passes",
    "Network": "network",
    "Parameters": "network",
    "Recording": "passes",
}

__all__ = ["DropoutPlan", "Network", "Parameters", "Recording"]

__getattr__ = on_first_use(__name__, _PUBLIC)
