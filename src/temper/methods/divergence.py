"""What settings tell of a divergence that can do next to nothing."""

from __future__ import annotations

import logging
import math

from temper.functional.losses import Divergence
from temper.types import Reduction

logger = logging.getLogger(__name__)

SMALLEST_LOSS = 0.01


def warn_of_small_divergence(
    method: str, *, weight: float, divergence: Divergence, reduction: Reduction
) -> None:
    """Warn of a Jensen-Shannon term that is nearly nothing whatever the passes say.

    It is at most ln 2 a row, so that its mean over the rows is at most ``weight * ln 2``.

    Args:
        method: Name of the method.
        weight: Of the divergence; 0 leaves it out, which is no fault.
        divergence: Which one it is.
        reduction: Over the rows.
    """
    largest = weight * math.log(2)
    if divergence == "js" and reduction == "mean" and 0 < largest < SMALLEST_LOSS:
        logger.warning(
            "%s: divergence='js' with reduction='mean' and a weight of %g is at most %.2g in the "
            "loss, so that it does next to nothing. Use reduction='sum', or raise the weight.",
            method,
            weight,
            largest,
        )
