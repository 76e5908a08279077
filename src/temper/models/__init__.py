"""Networks as the forward stage sees them, and the models that Transformers and PEFT load."""

from temper.models.network import Network, Parameters, Recording
from temper.models.sites import DropoutPlan

__all__ = ["DropoutPlan", "Network", "Parameters", "Recording"]
