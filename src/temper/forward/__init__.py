"""The forward stage: a clean pass and the parts that stand on it, joined to an objective."""

from temper.forward.adversarial import AdversarialLoss as AdversarialLoss
from temper.forward.objective import Clean as Clean
from temper.forward.objective import Joint as Joint
from temper.forward.objective import Objective as Objective
from temper.forward.objective import add as add
from temper.forward.perturbations import Noise as Noise
from temper.forward.perturbations import Perturbation as Perturbation
from temper.forward.stage import Coupling as Coupling
from temper.forward.stage import Part as Part
from temper.forward.stage import Stage as Stage
from temper.forward.submodels import SubModels as SubModels
