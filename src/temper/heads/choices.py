"""Multiple choice: one of N answers to a question is correct."""

from __future__ import annotations

from typing import ClassVar

from temper.heads.classification import Classification
from temper.heads.head import Gives


class Choices(Classification):
    """Multiple choice with N answers: logits [B, N], labels [B], one unit per row, C = N.

    Inputs are [B, N, T]; the encoder reads B * N sequences. The norm of a perturbation is over all
    choices of a question together.

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
