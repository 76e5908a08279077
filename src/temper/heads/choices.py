"""Choices: one of the N answers to a question is right."""

from __future__ import annotations

from typing import ClassVar

from temper.heads.classification import Classification
from temper.heads.head import Gives


class Choices(Classification):
    """One right choice of N, with logits [B, N] and labels [B]: one unit per row, C = N.

    Inputs are [B, N, T], and the encoder reads B * N sequences. The embeddings of a row are those
    of all its choices, so a perturbation's norm is taken over the choices of a question together.

    References:
        FreeLB (arXiv 1909.11764), section 3.2: ranking tasks.
    """

    name: ClassVar[str] = "choices"
    labels: ClassVar[str] = "answers among choices"
    gives: ClassVar[Gives] = "choices"
    auto_class: ClassVar[str] = "AutoModelForMultipleChoice"
    task_type: ClassVar[str | None] = None
    named: ClassVar[bool] = False
    not_in_windows: ClassVar[str] = (
        "a row is read as several sequences already, one for each choice"
    )
