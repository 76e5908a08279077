"""The forward stage: one training step's clean pass, plans, and the losses of composed methods."""

from temper.forward.perturbations import Noise as Noise
from temper.forward.plan import Plan as Plan
from temper.forward.plan import plain as plain
from temper.forward.step import StepContext as StepContext
from temper.forward.submodels import SubModels as SubModels
from temper.forward.totals import Losses as Losses
from temper.forward.totals import with_weight as with_weight
