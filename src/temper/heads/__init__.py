"""Heads: one file for each kind of labels, with everything that depends on it."""

from __future__ import annotations

from temper.heads.classification import Classification
from temper.heads.head import Head, per_row
from temper.heads.registry import HEADS, Heads, head_of
from temper.heads.regression import Regression

__all__ = ["HEADS", "Classification", "Head", "Heads", "Regression", "head_of", "per_row"]
