"""The backward stage: update rules."""

from temper.backward.rule import Chain, UpdateRule, chain
from temper.backward.selective import EpochSelectiveUpdate, SelectiveUpdate

__all__ = ["Chain", "EpochSelectiveUpdate", "SelectiveUpdate", "UpdateRule", "chain"]
