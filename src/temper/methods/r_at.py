"""R-AT: the clean loss, two attacked dropout passes, and their symmetric divergence.

``L = CE_c + 1/2 (CE_1 + CE_2) + 1/2 * symKL``, ``symKL = (KL(1||2) + KL(2||1)) / 2`` summed over
batch and classes.

Source: Ni et al., Findings of EMNLP 2022; released code IKMLab/R-AT. Differs: UEGR's attack (per
example, epsilon a share of the embedding norm) and its shared backward, 9F; ``released=True``
moves the whole embedding matrix by ``epsilon * G / ||G||_F``, takes an attack gradient of its own
and throws it away, 11F.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from temper.backward.rule import chain
from temper.forward.adversarial import AdversarialLoss
from temper.forward.objective import Clean, Joint, Objective
from temper.forward.submodels import SubModels
from temper.functional.losses import Divergence
from temper.methods.attack import AttackConfig
from temper.methods.divergence import check_attack_off, warn_of_small_divergence
from temper.methods.method import Method
from temper.methods.published import Published
from temper.methods.registry import register
from temper.types import Reduction


@register(
    "r_at",
    summary="Two attacked dropout passes held together by a divergence",
    cost="9F (released: 11F)",
    memory="activations of two passes",
    paper="Ni et al., Findings of EMNLP 2022",
)
class RAT(AttackConfig):
    """Settings of R-AT, with those of the attack.

    Args:
        adversarial_weight: Weight of the mean attacked loss. 0 needs
            ``divergence_weight`` beside it: 0 too for no attack at all.
        divergence_weight: Weight of the divergence.
        divergence: ``sym_kl`` as published, or ``js``.
        reduction: ``sum`` over the rows as published, or ``mean``.
        released: Move the embedding matrix as the released code does, with an absolute epsilon
            (theirs, and the default here, is 1).
    """

    PUBLISHED: ClassVar[dict[str, Published]] = {
        "adversarial_weight": Published("1", "the paper"),
        "divergence_weight": Published(".5", "the paper"),
        "divergence": Published("sym_kl", "the paper"),
        "reduction": Published("sum", "released code"),
        "epsilon": Published("1, of the whole embedding matrix", "released code"),
        "train.learning_rate": Published("5e-5", "released code"),
        "train.batch_size": Published("32", "released code"),
    }

    adversarial_weight: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    divergence_weight: float = Field(default=0.5, ge=0.0, allow_inf_nan=False)
    divergence: Divergence = "sym_kl"
    reduction: Reduction = "sum"
    released: bool = False

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"released": {"released": True}}

    @model_validator(mode="before")
    @classmethod
    def _fill_in_what_was_released(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("released") is True:
            return {"epsilon": 1.0, "relative": False, **values}
        return values

    @model_validator(mode="after")
    def _refuse_what_released_ignores(self) -> Self:
        if not self.released:
            return self
        ignored = {
            "relative": self.relative,
            "norm": self.norm != "l2",
            "attack_scope": self.attack_scope != "example",
            "site": self.site != "word",
        }
        named = [name for name, given in ignored.items() if given]
        if named:
            raise ValueError(
                "released=True moves the whole embedding matrix by an absolute epsilon in the l2 "
                f"norm and would ignore {', '.join(named)}; leave them out, or leave released out"
            )
        return self

    @model_validator(mode="after")
    def _check_divergence(self) -> Self:
        check_attack_off(self, divergence_weight=self.divergence_weight)
        warn_of_small_divergence(
            type(self).__name__,
            weight=self.divergence_weight,
            divergence=self.divergence,
            reduction=self.reduction,
        )
        return self

    def off(self) -> Self:
        """Switch the attacked passes off."""
        return self._with(adversarial_weight=0.0, divergence_weight=0.0)

    def objective(self) -> Objective:
        """Return the forward stage."""
        if not self.adversarial_weight and not self.divergence_weight:
            return Clean()
        attack = AdversarialLoss(
            self.perturbation(scope="matrix" if self.released else None),
            SubModels(passes=2),
            weight=self.adversarial_weight,
            divergence_weight=self.divergence_weight,
            divergence=self.divergence,
            reduction=self.reduction,
            reuse=not self.released,
        )
        return Joint(Clean(weight=1.0), (attack,))

    def build(self) -> Method:
        """Return the method."""
        return Method("r_at", self, self.objective(), chain())
