"""Choices: one of the N answers to a question is right."""

from __future__ import annotations

from typing import ClassVar

from temper.heads.classification import Classification


class Choices(Classification):
    """One right choice of N, with logits [B, N] and labels [B]: one unit per row, C = N.

    Inputs are [B, N, T], and the encoder reads B * N sequences. The embeddings of a row are those
    of all its choices, so a perturbation's norm is taken over the choices of a question together.

    References:
        FreeLB (arXiv 1909.11764), section 3.2: ranking tasks.
    """

    name: ClassVar[str] = "choices"
    of_whole_text: ClassVar[bool] = False
