"""Temper: fine-tune language models for robustness, and evaluate the robustness of classifiers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from temper.importing import on_first_use

if TYPE_CHECKING:
    from temper.api.check_labels import check_labels as check_labels
    from temper.api.compare import compare as compare
    from temper.api.evaluate import evaluate as evaluate
    from temper.api.fit import fit as fit
    from temper.api.train import train as train
    from temper.api.tune import tune as tune
    from temper.calibration.classifier import Classifier as Classifier
    from temper.export.push import push as push
    from temper.methods import Method as Method
    from temper.methods import compose as compose
    from temper.methods import configure as configure
    from temper.methods import register as register
    from temper.methods.at import AT as AT
    from temper.methods.dropout import Dropout as Dropout
    from temper.methods.plain import Plain as Plain
    from temper.methods.r_at import RAT as RAT
    from temper.methods.r_at_su import RATSU as RATSU
    from temper.methods.r_drop import RDrop as RDrop
    from temper.methods.roast import RoAST as RoAST
    from temper.methods.uegr import UEGR as UEGR
    from temper.models.network import Network as Network
    from temper.training.stepper import Stepper as Stepper
    from temper.training.trainer import RobustTrainer as RobustTrainer

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

__all__ = list(_PUBLIC)
__getattr__ = on_first_use(__name__, _PUBLIC)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
