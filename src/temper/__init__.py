"""Temper: fine-tune language models so that they hold, and measure whether any classifier does."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from temper.importing import after_import

if TYPE_CHECKING:
    from temper.methods import Method, MethodConfig, compose, configure, register
    from temper.methods.at import AT
    from temper.methods.dropout import Dropout
    from temper.methods.r_at import RAT
    from temper.methods.r_at_su import RATSU
    from temper.methods.r_drop import RDrop
    from temper.methods.roast import RoAST
    from temper.methods.uegr import UEGR
    from temper.methods.vanilla import Vanilla
    from temper.models import Network
    from temper.training.stepper import Stepper
    from temper.training.trainer import RobustTrainer

__version__ = "0.1.0"

# Transformers' auto classes know our own networks once both are imported.
after_import("transformers.models.auto.modeling_auto", "temper.models.classical.registration")
after_import("transformers.models.auto.modeling_auto", "temper.models.multi_task.registration")

# Public name -> module: imported on first use, so that `temper --help` does not wait for torch.
_PUBLIC = {
    "AT": "temper.methods.at",
    "Dropout": "temper.methods.dropout",
    "Method": "temper.methods",
    "MethodConfig": "temper.methods",
    "Network": "temper.models",
    "RAT": "temper.methods.r_at",
    "RATSU": "temper.methods.r_at_su",
    "RDrop": "temper.methods.r_drop",
    "RoAST": "temper.methods.roast",
    "RobustTrainer": "temper.training.trainer",
    "Stepper": "temper.training.stepper",
    "UEGR": "temper.methods.uegr",
    "Vanilla": "temper.methods.vanilla",
    "compose": "temper.methods",
    "configure": "temper.methods",
    "register": "temper.methods",
}

__all__ = [
    "AT",
    "RAT",
    "RATSU",
    "UEGR",
    "Dropout",
    "Method",
    "MethodConfig",
    "Network",
    "RDrop",
    "RoAST",
    "RobustTrainer",
    "Stepper",
    "Vanilla",
    "compose",
    "configure",
    "register",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'temper' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
