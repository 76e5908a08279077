"""Networks from before transformers, trained from scratch, as models of Transformers."""

from temper.models.classical.registry import ARCHITECTURES

__all__ = ["ARCHITECTURES"]
