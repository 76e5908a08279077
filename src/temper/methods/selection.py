"""Settings of the selective update, shared by methods, and the rules built from them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, FiniteFloat

from temper.backward.rule import UpdateRule
from temper.backward.selective import EpochSelectiveUpdate, SelectiveUpdate
from temper.functional.masks import Normalize, Orientation
from temper.methods.method import Method
from temper.methods.variants import Off, Variant

logger = logging.getLogger(__name__)


class Selective(Variant):
    """A random mask over the gradient."""

    kind: Literal["selective"] = "selective"
    alpha: FiniteFloat = Field(
        default=0.6,
        ge=0.0,
        le=1.0,
        description="Turning point in [0, 1]; about the fraction that is masked.",
    )
    beta: FiniteFloat = Field(default=1.0, gt=0.0, le=100.0, description="Sharpness.")
    p_min: float = Field(
        default=1e-3,
        ge=0.0,
        le=1.0,
        description="Smallest probability used; 0 sets no bound (and draws with 32 bits).",
    )
    scale: bool = Field(
        default=True, description="Whether kept entries are divided by their probability."
    )
    normalize: Normalize = Field(
        default="rank", description="`rank` (RoAST's code) or `range` (Eq. 8 as printed)."
    )
    orientation: Orientation = Field(
        default="prose",
        description="`prose` (salient entries move) or `printed` (Eq. 9 as printed).",
    )
    refresh: Literal["step", "epoch"] = Field(
        default="step", description="A new mask every `step` or every `epoch`."
    )
    scope: Literal["blocks", "all"] = Field(default="blocks", description="`blocks` or `all`.")


class SelectionConfig(Method):
    """Settings of the selective update."""

    mask: Selective | Off = Field(
        default=Selective(), discriminator="kind", description="`selective`, or `off`."
    )

    def check(self) -> None:
        super().check()
        if not isinstance(self.mask, Selective) or not self.mask.scale or self.mask.beta < 5:
            return
        # The range of squared gradients puts nearly all saliencies near 0 (docs/methods/uegr.md).
        if (self.mask.normalize, self.mask.orientation) == ("range", "prose"):
            logger.warning(
                "normalize='range' with orientation='prose' and beta >= 5 gives nearly every entry "
                "the smallest probability: almost nothing is updated, and kept entries are "
                "divided by p_min=%g. Use normalize='rank'.",
                self.mask.p_min,
            )

    @classmethod
    def from_scratch(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        # As in UEGR, all parameters are masked.
        return {"mask": {"scope": "all"}}

    def update(self) -> list[UpdateRule]:
        if self.mask.is_off:
            return []
        values = self.mask.values
        update = SelectiveUpdate if values.pop("refresh") == "step" else EpochSelectiveUpdate
        return [update(**values)]
