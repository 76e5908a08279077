"""The forward stage: perturbations, sub-models and terms, joined to an objective."""

from temper.forward.objective import Attacked, Clean, Objective, Repeated
from temper.forward.perturbations import Perturbation
from temper.forward.submodels import SubModels

__all__ = ["Attacked", "Clean", "Objective", "Perturbation", "Repeated", "SubModels"]
