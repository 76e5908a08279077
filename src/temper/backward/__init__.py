"""The backward stage: update rules, which change gradients, weights or learning rates."""

from temper.backward.rule import Chain, UpdateRule, chain

__all__ = ["Chain", "UpdateRule", "chain"]
