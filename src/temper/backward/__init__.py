"""The backward stage: update rules."""

from temper.backward.rule import Chain, UpdateRule, chain

__all__ = ["Chain", "UpdateRule", "chain"]
