"""The backward stage: how gradients become movement."""

from temper.backward.rule import Chain, UpdateRule, chain
from temper.backward.selective import SelectiveUpdate

__all__ = ["Chain", "SelectiveUpdate", "UpdateRule", "chain"]
