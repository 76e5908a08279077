"""UEGR: attacked passes under adaptive dropout, and a selective update.

Per step: a clean pass, whose one backward gives the gradient of the weights, of the embeddings and
of every dropout site; a step of size epsilon along the embeddings' gradient (Eq. 2); K attacked
passes under adaptive dropout, run as one forward; ``L = L_st + L_adv + lambda * L_div`` (Eq. 6)
with ``L_div`` the Jensen-Shannon divergence over all pairs (Eq. 4); then each entry of the
gradient moves with a probability that follows its saliency (Eqs. 7 to 9).

Source: UEGR, arXiv 2503.16550. Where the paper contradicts itself: docs/methods/uegr.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from temper.forward.adversarial import AdversarialLoss
from temper.forward.objective import Clean, Joint
from temper.forward.submodels import Adaptive, SubModels
from temper.functional.losses import Divergence
from temper.methods.attack import AttackConfig
from temper.methods.divergence import check_attack_off, warn_of_small_divergence
from temper.methods.method import Method
from temper.methods.published import Published
from temper.methods.registry import register
from temper.methods.selection import OF_UEGR, SelectionConfig
from temper.types import Reduction


@register(
    "uegr",
    summary="Attacked passes under adaptive dropout, selective update",
    cost="3F + 3KF + mask",
    memory="activations of K passes",
    paper="UEGR, arXiv 2503.16550",
)
class UEGR(AttackConfig, SelectionConfig):
    """Settings of UEGR, with those of the attack and of the selective update.

    Args:
        passes: K, attacked sub-models, at least 1.
        adversarial_weight: Weight of the mean attacked loss. 0 needs
            ``divergence_weight`` beside it: 0 too for no attack at all, or what the divergence of
            the attacked passes counts alone.
        divergence_weight: Weight lambda of the divergence. One pass has
            no pairs, so no divergence.
        divergence: ``js`` (Eq. 4) or ``sym_kl``.
        reduction: ``sum`` over the rows as R-Drop, R-AT and RoAST run it, or ``mean``.
        adaptive: Rates of the attacked passes: ``gradient`` (section V-A), ``uniform``, or
            ``fixed`` (Figure 3).
        low: Smallest adaptive rate (the paper's best region: .3 to .5, for models trained from
            scratch, which a run of such a model takes). Read with ``gradient`` only, as ``high``.
        high: Largest adaptive rate.
        rates: K fixed rates, for ``fixed``.
        sites: ``all`` dropout layers or the ``last`` before the head.
    """

    PUBLISHED: ClassVar[dict[str, Published]] = {
        "epsilon": Published(".01, .1 or .4", "Section VI-A"),
        "relative": Published("false", "Section VI-A"),
        "norm": Published("l2", "Eq. 2"),
        "site": Published("word", "Eq. 2"),
        "passes": Published("2", "Section VI-A"),
        "adversarial_weight": Published("1", "Eq. 6"),
        "divergence_weight": Published(".01", "Section VI-A"),
        "divergence": Published("js", "Eq. 4"),
        "low": Published(".3", "Figure 3, best region"),
        "high": Published(".5", "Figure 3, best region"),
        **OF_UEGR,
    }

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"epsilon": 0.1, "relative": False, "low": 0.3, "high": 0.5},
        "sentiment": {"alpha": 0.9, "beta": 10.0},
        "entailment": {"alpha": 0.6, "beta": 1.0},
    }

    passes: int = Field(default=2, ge=1, le=64)
    adversarial_weight: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    divergence_weight: float = Field(default=0.01, ge=0.0, allow_inf_nan=False)
    divergence: Divergence = "js"
    reduction: Reduction = "sum"
    adaptive: Adaptive = "gradient"
    low: float = Field(default=0.05, ge=0.0, lt=1.0)
    high: float = Field(default=0.2, ge=0.0, lt=1.0)
    rates: tuple[float, ...] = ()
    sites: Literal["all", "last"] = "all"

    @model_validator(mode="after")
    def _check_rates(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low must be at most high, got low={self.low} and high={self.high}")
        if self.adaptive == "fixed":
            if len(self.rates) != self.passes:
                raise ValueError(
                    f"adaptive='fixed' needs {self.passes} rates, one a pass, got "
                    f"{list(self.rates)}"
                )
            if not all(0 <= rate < 1 for rate in self.rates):
                raise ValueError(f"rates must lie in [0, 1), got {list(self.rates)}")
        elif self.rates:
            raise ValueError(f"rates are read only with adaptive='fixed', got {list(self.rates)}")
        return self

    @model_validator(mode="after")
    def _refuse_what_is_ignored(self) -> Self:
        own = type(self).model_fields
        given = {name: getattr(self, name) for name in ("low", "high")}
        changed = [name for name, value in given.items() if value != own[name].default]
        if changed and self.adaptive != "gradient":
            defaults = ", ".join(f"{name}={own[name].default:g}" for name in given)
            raise ValueError(
                f"adaptive={self.adaptive!r} would ignore {', '.join(changed)}, which only "
                f"adaptive='gradient' reads; leave them at {defaults}"
            )
        return self

    @model_validator(mode="after")
    def _check_attack_off(self) -> Self:
        check_attack_off(self, divergence_weight=self._divergence_weight)
        return self

    @model_validator(mode="after")
    def _warn_of_small_divergence(self) -> Self:
        warn_of_small_divergence(
            "UEGR",
            weight=self._divergence_weight,
            divergence=self.divergence,
            reduction=self.reduction,
        )
        return self

    @property
    def _divergence_weight(self) -> float:
        return self.divergence_weight if self.passes > 1 else 0.0

    @classmethod
    def from_scratch(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Mask all, and drop at the paper's rates; as `MethodConfig.from_scratch`."""
        rates = {"low": 0.3, "high": 0.5}
        free = given.get("adaptive", "gradient") == "gradient" and not rates.keys() & given.keys()
        return {**super().from_scratch(given), **(rates if free else {})}

    def off(self) -> Self:
        """Switch the attacked passes and the mask off."""
        return self._with(adversarial_weight=0.0, divergence_weight=0.0, mask=False)

    def build(self) -> Method:
        """Return the method."""
        divergence_weight = self._divergence_weight
        if not self.adversarial_weight and not divergence_weight:
            return Method("uegr", self, Clean(), self.rule())
        passes = SubModels(
            passes=self.passes,
            adaptive=self.adaptive,
            low=self.low,
            high=self.high,
            rates=self.rates,
            sites=self.sites,
        )
        attack = AdversarialLoss(
            self.perturbation(),
            passes,
            weight=self.adversarial_weight,
            divergence_weight=divergence_weight,
            divergence=self.divergence,
            reduction=self.reduction,
        )
        return Method("uegr", self, Joint(Clean(weight=1.0), (attack,)), self.rule())
