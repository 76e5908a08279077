"""Heads: one file per kind of labels, with all code that depends on it."""

from __future__ import annotations

from temper.heads.choices import Choices
from temper.heads.classification import Classification
from temper.heads.completions import Completions, Seq2Seq
from temper.heads.head import UNLABELED, Gives, Head, per_row
from temper.heads.multi_label import MultiLabel
from temper.heads.registry import HEADS, Heads
from temper.heads.regression import Regression
from temper.heads.spans import Spans, best_spans
from temper.heads.tokens import Tokens

__all__ = [
    "HEADS",
    "UNLABELED",
    "Choices",
    "Classification",
    "Completions",
    "Gives",
    "Head",
    "Heads",
    "MultiLabel",
    "Regression",
    "Seq2Seq",
    "Spans",
    "Tokens",
    "best_spans",
    "per_row",
]
