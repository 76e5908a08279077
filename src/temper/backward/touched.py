"""Which rows of a matrix a step touches: an embedding's gradient is zero for most words."""

from __future__ import annotations

import torch
from torch import Tensor

MANY_ROWS = 8192
"""Rows from which on looking for them is worth a pass: vocabularies, and no other matrix."""


def touched_rows(gradient: Tensor) -> Tensor | None:
    """Find the rows of a tall matrix whose gradient is not zero.

    A batch touches a few hundred words of tens of thousands. What is zero where the gradient is
    zero need not be computed, copied or drawn for the others.

    Args:
        gradient: Any shape.

    Returns:
        Their numbers [n] in rising order; None where all rows count: for fewer than `MANY_ROWS`
        rows, for other than two axes, and where more than half of the rows are touched. A row whose
        entries are all below 1e-22 (their squares vanish in fp32) counts as zero; one that is not
        finite counts as touched.
    """
    if gradient.dim() != 2 or len(gradient) < MANY_ROWS:
        return None
    single = torch.promote_types(gradient.dtype, torch.float32)
    norms = torch.linalg.vector_norm(gradient, dim=1, dtype=single)
    rows = norms.nonzero().squeeze(1)
    return rows if 2 * len(rows) <= len(gradient) else None
