"""What settings tell of a divergence: that it does next to nothing, or keeps an attack running."""

from __future__ import annotations

import logging
import math

from temper.functional.losses import Divergence
from temper.methods.method import MethodConfig
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


def check_attack_off(config: MethodConfig, *, divergence_weight: float) -> None:
    """Refuse an attack that is switched off by halves, and that nobody asked to keep.

    Args:
        config: Settings with ``adversarial_weight`` and ``divergence_weight``.
        divergence_weight: What the divergence of the attacked passes counts with in effect.

    Raises:
        ValueError: If the adversarial weight is 0, and a default alone keeps the passes running.
    """
    asked = "divergence_weight" in config.model_fields_set
    if not vars(config)["adversarial_weight"] and divergence_weight and not asked:
        raise ValueError(
            "adversarial_weight=0 alone leaves the attacked passes running, for their divergence "
            f"(divergence_weight={divergence_weight:g}). Set divergence_weight=0 too to have no "
            "attack, or give divergence_weight to keep the divergence alone"
        )
