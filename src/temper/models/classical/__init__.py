"""Networks from before transformers, trained from scratch, as models of Transformers.

``networks`` registers them with the auto classes; `temper` imports it as soon as those exist.
"""

from temper.models.classical.registry import ARCHITECTURES

__all__ = ["ARCHITECTURES"]
