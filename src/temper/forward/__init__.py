"""The forward stage: a clean pass and the parts that stand on it, joined to an objective."""

from temper.forward.adversarial import AdversarialLoss
from temper.forward.objective import Clean, Joint, Objective, add
from temper.forward.perturbations import Noise, Perturbation
from temper.forward.stage import Coupling, Part, Stage
from temper.forward.submodels import SubModels

__all__ = [
    "AdversarialLoss",
    "Clean",
    "Coupling",
    "Joint",
    "Noise",
    "Objective",
    "Part",
    "Perturbation",
    "Stage",
    "SubModels",
    "add",
]
