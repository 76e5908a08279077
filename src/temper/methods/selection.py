"""Settings of the selective update that methods share, and how they become a rule."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from temper.backward.rule import UpdateRule, chain
from temper.backward.selective import SelectiveUpdate
from temper.functional.masks import Normalise, Orientation
from temper.methods.method import MethodConfig
from temper.methods.published import Published

logger = logging.getLogger(__name__)

OF_UEGR: dict[str, Published] = {
    "alpha": Published(".6 to .95", "Section VI-A"),
    "beta": Published("1, 5 or 10", "Section VI-A"),
    "scale": Published("true", "Section VI-A"),
    "normalise": Published("range", "Eq. 8"),
    "orientation": Published("printed", "Eq. 9; the prose says the opposite"),
    "refresh": Published("step", "Algorithm 1"),
    "train.epochs": Published("10", "Section VI-A"),
    "train.batch_size": Published("16", "Section VI-A"),
    "train.weight_decay": Published(".01", "Section VI-A"),
    "train.warmup_ratio": Published(".06", "Section VI-A"),
    "train.schedule": Published("linear", "Section VI-A"),
}
"""What UEGR's paper gives the selective update, and the runs with it."""


class SelectionConfig(MethodConfig):
    """Settings of the selective update.

    Args:
        mask: Whether the update is selective at all.
        alpha: Turning point in [0, 1]; about the share that is masked.
        beta: Sharpness, above 0.
        p_min: Smallest probability used, in [0, 1]; 0 sets no bound (and draws with 32 bits).
        scale: Whether what is kept is divided by its probability.
        normalise: ``rank`` (RoAST's code) or ``range`` (Eq. 8 as printed).
        orientation: ``prose`` (salient entries move) or ``printed`` (Eq. 9 as printed).
        refresh: A new mask every ``step`` or every ``epoch``.
        mask_scope: ``blocks`` or ``all``.
        freeze_masked: Whether masked weights are kept from moving by momentum and decay.
        clipping: Mask ``after`` or ``before`` clipping.
    """

    mask: bool = True
    alpha: float = Field(default=0.6, ge=0.0, le=1.0)
    beta: float = Field(default=1.0, gt=0.0, le=100.0)
    p_min: float = Field(default=1e-3, ge=0.0, le=1.0)
    scale: bool = True
    normalise: Normalise = "rank"
    orientation: Orientation = "prose"
    refresh: Literal["step", "epoch"] = "step"
    mask_scope: Literal["blocks", "all"] = "blocks"
    freeze_masked: bool = False
    clipping: Literal["after", "before"] = "after"

    @model_validator(mode="after")
    def _warn_of_explosion(self) -> Self:
        if self.mask and self.scale and self.explosive:
            logger.warning(
                "normalise='range' with orientation='prose' and beta >= 5 gives nearly every entry "
                "the smallest probability: almost nothing moves, and what does is divided by "
                "p_min=%g. Use normalise='rank'.",
                self.p_min,
            )
        return self

    @classmethod
    def from_scratch(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Mask all parameters (UEGR); as `MethodConfig.from_scratch`."""
        return {} if "mask_scope" in given else {"mask_scope": "all"}

    @property
    def explosive(self) -> bool:
        """Tell whether range normalisation meets a rising, sharp probability (methods.md)."""
        return self.normalise == "range" and self.orientation == "prose" and self.beta >= 5

    def rule(self) -> UpdateRule:
        """Return the update rule that these settings describe."""
        if not self.mask:
            return chain()
        selective = SelectiveUpdate(
            alpha=self.alpha,
            beta=self.beta,
            p_min=self.p_min,
            scale=self.scale,
            normalise=self.normalise,
            orientation=self.orientation,
            refresh=self.refresh,
            scope=self.mask_scope,
            freeze_masked=self.freeze_masked,
            clipping=self.clipping,
        )
        return chain(selective)
