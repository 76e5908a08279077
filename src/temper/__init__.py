"""Temper: fine-tune language models for robustness, and evaluate the robustness of classifiers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from temper.importing import on_first_use

if TYPE_CHECKING:
    from temper.api.check_labels import check_labels
    from temper.api.compare import compare
    from temper.api.evaluate import evaluate
    from temper.api.fit import fit
    from temper.api.train import train
    from temper.api.tune import tune
    from temper.calibration.classifier import Classifier
    from temper.export.push import push
    from temper.methods import Method, compose, configure, register
    from temper.methods.at import AT
    from temper.methods.dropout import Dropout
    from temper.methods.plain import Plain
    from temper.methods.r_at import RAT
    from temper.methods.r_at_su import RATSU
    from temper.methods.r_drop import RDrop
    from temper.methods.roast import RoAST
    from temper.methods.uegr import UEGR
    from temper.models.network import Network
    from temper.training.stepper import Stepper
    from temper.training.trainer import RobustTrainer

__version__ = "0.1.0"

# Public name -> module: imported on first use, so that `temper --help` does not wait for torch.
_PUBLIC = {
    "AT": "methods.at",
    "Classifier": "calibration.classifier",
    "Dropout": "methods.dropout",
    "Method": "methods",
    "Network": "models.network",
    "RAT": "methods.r_at",
    "RATSU": "methods.r_at_su",
    "RDrop": "methods.r_drop",
    "RoAST": "methods.roast",
    "RobustTrainer": "training.trainer",
    "Stepper": "training.stepper",
    "UEGR": "methods.uegr",
    "Plain": "methods.plain",
    "check_labels": "api.check_labels",
    "compare": "api.compare",
    "compose": "methods",
    "configure": "methods",
    "evaluate": "api.evaluate",
    "push": "export.push",
    "register": "methods",
    "train": "api.train",
    "fit": "api.fit",
    "tune": "api.tune",
}

__all__ = [
    "AT",
    "RAT",
    "RATSU",
    "UEGR",
    "Classifier",
    "Dropout",
    "Method",
    "Network",
    "Plain",
    "RDrop",
    "RoAST",
    "RobustTrainer",
    "Stepper",
    "check_labels",
    "compare",
    "compose",
    "configure",
    "evaluate",
    "fit",
    "push",
    "register",
    "train",
    "tune",
]


__getattr__ = on_first_use(__name__, _PUBLIC)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
