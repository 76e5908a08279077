"""Settings of the selective update that methods share, and how they become a rule."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from temper.backward.rule import UpdateRule, chain
from temper.backward.selective import SelectiveUpdate, Target
from temper.functional.masks import Normalise, Orientation
from temper.functional.schedules import ScalarOrSchedule
from temper.methods.method import MethodConfig, Published
from temper.methods.variants import Off, Variant, as_table

logger = logging.getLogger(__name__)

OF_UEGR: dict[str, Published] = {
    "mask.alpha": Published(".6 to .95", "Section VI-A"),
    "mask.beta": Published("1, 5 or 10", "Section VI-A"),
    "mask.scale": Published("true", "Section VI-A"),
    "mask.normalise": Published("range", "Eq. 8"),
    "mask.orientation": Published("printed", "Eq. 9; the prose says the opposite"),
    "mask.refresh": Published("step", "Algorithm 1"),
    "train.epochs": Published("10", "Section VI-A"),
    "train.batch_size": Published("16", "Section VI-A"),
    "train.weight_decay": Published(".01", "Section VI-A"),
    "train.warmup_ratio": Published(".06", "Section VI-A"),
    "train.schedule": Published("linear", "Section VI-A"),
}
"""What UEGR's paper gives the selective update, and the runs with it."""


class _Mask(Variant):
    """What masks over gradients and over updates share.

    Args:
        alpha: Turning point in [0, 1]; about the share that is masked.
        beta: Sharpness, above 0.
        p_min: Smallest probability used, in [0, 1]; 0 sets no bound (and draws with 32 bits).
        scale: Whether what is kept is divided by its probability.
        normalise: ``rank`` (RoAST's code) or ``range`` (Eq. 8 as printed).
        orientation: ``prose`` (salient entries move) or ``printed`` (Eq. 9 as printed).
        refresh: A new mask every ``step`` or every ``epoch``.
        scope: ``blocks`` or ``all``.
        importance_decay: What a step's mask keeps of the squared gradients of the steps before, in
            [0, 1); 0 takes the step's own alone, more costs one copy of the weights in scope.
        begin: Share of the run without a mask, in [0, 1).
    """

    alpha: ScalarOrSchedule = Field(default=0.6, ge=0.0, le=1.0)
    beta: ScalarOrSchedule = Field(default=1.0, gt=0.0, le=100.0)
    p_min: float = Field(default=1e-3, ge=0.0, le=1.0)
    scale: bool = True
    normalise: Normalise = "rank"
    orientation: Orientation = "prose"
    refresh: Literal["step", "epoch"] = "step"
    scope: Literal["blocks", "all"] = "blocks"
    importance_decay: float = Field(default=0.0, ge=0.0, lt=1.0)
    begin: float = Field(default=0.0, ge=0.0, lt=1.0)

    @model_validator(mode="after")
    def _importance_is_read(self) -> Self:
        if self.refresh == "epoch" and self.importance_decay:
            raise ValueError(
                "importance_decay averages over steps, and refresh='epoch' sums over the epoch "
                "before. Leave one of them out"
            )
        return self


class Selective(_Mask):
    """A mask that is drawn for the gradient.

    Args:
        freeze_masked: Whether masked weights are kept from moving by momentum and decay.
        clipping: Mask ``after`` or ``before`` clipping.
    """

    kind: Literal["selective"] = "selective"
    freeze_masked: bool = False
    clipping: Literal["after", "before"] = "after"


class MaskedUpdate(_Mask):
    """A mask for what the optimiser has moved: its moments see the whole gradient."""

    kind: Literal["update"] = "update"


class SelectionConfig(MethodConfig):
    """Settings of the selective update.

    Args:
        mask: ``selective`` (of the gradient), ``update`` (of what the optimiser has moved), or
            ``off``.
    """

    HALVES: ClassVar[dict[str, str]] = {"mask": "rule"}

    mask: Selective | MaskedUpdate | Off = Field(default=Selective(), discriminator="kind")

    def check(self) -> None:
        """Warn of settings under which almost nothing moves."""
        super().check()
        if not isinstance(self.mask, _Mask) or not self.mask.scale or self.mask.beta < 5:
            return
        # A rising, sharp probability of shares that are nearly all near 0 (docs/methods/uegr.md).
        if (self.mask.normalise, self.mask.orientation) == ("range", "prose"):
            logger.warning(
                "normalise='range' with orientation='prose' and beta >= 5 gives nearly every entry "
                "the smallest probability: almost nothing moves, and what does is divided by "
                "p_min=%g. Use normalise='rank'.",
                self.mask.p_min,
            )

    @classmethod
    def from_scratch(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Mask all parameters (UEGR); as `MethodConfig.from_scratch`."""
        table = as_table(given.get("mask", {}), cls.model_fields["mask"])
        kind = {"kind": "update"} if table["kind"] == "update" else {}
        return {"mask": {**kind, "scope": "all"}}

    def rule(self) -> UpdateRule:
        """Return the update rule that these settings describe."""
        if self.mask.is_off:
            return chain()
        target: Target = "update" if self.mask.kind == "update" else "gradient"
        return chain(SelectiveUpdate(**self.mask.values, target=target))
