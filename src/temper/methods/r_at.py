"""R-AT: the clean loss, two attacked dropout passes, and their symmetric divergence.

``L = CE_c + 1/2 (CE_1 + CE_2) + 1/2 * symKL``, ``symKL = (KL(1||2) + KL(2||1)) / 2`` summed over
batch and classes.

Source: Ni et al., Findings of EMNLP 2022; released code IKMLab/R-AT. Differs: UEGR's attack (per
example, epsilon a share of the embedding norm) and its shared backward, 9F; preset ``released``
moves the whole embedding matrix by ``epsilon * G / ||G||_F``, takes an attack gradient of its own
and throws it away, 11F.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, FiniteFloat

from temper.forward import AdversarialLoss, Clean, Coupling, Joint, Objective, SubModels
from temper.functional.losses import Divergence
from temper.methods import Method, Published, register
from temper.methods.attack import AttackConfig, check_attack_off, warn_of_small_divergence
from temper.types import Reduction


@register(
    "r_at",
    summary="Two attacked dropout passes held together by a divergence",
    cost="9F (released: 11F)",
    memory="activations of two passes",
    paper="Ni et al., Findings of EMNLP 2022",
    claims="perturbation, sub-models",
)
class RAT(AttackConfig):
    """Settings of R-AT, with those of the attack.

    Args:
        adversarial_weight: Weight of the mean attacked loss. 0 needs
            ``divergence_weight`` beside it: 0 too for no attack at all.
        divergence_weight: Weight of the divergence.
        divergence: ``sym_kl`` as published, or ``js``.
        reduction: ``sum`` over the rows as published, or ``mean``.
        attack_scope: What shares the budget: ``example``, ``token``, ``batch``, or the ``matrix``
            of the word embeddings, in which every occurrence of a word moves alike.
        reuse: Whether clean pass and attack share one backward (9F); the released code has one
            more pass for the attack's gradient (11F).
    """

    PUBLISHED: ClassVar[dict[str, Published]] = {
        "adversarial_weight": Published("1", "the paper"),
        "divergence_weight": Published("0.5", "the paper"),
        "divergence": Published("sym_kl", "the paper"),
        "reduction": Published("sum", "released code"),
        "epsilon": Published("1, of the whole embedding matrix", "released code"),
        "train.learning_rate": Published("5e-5", "released code"),
        "train.batch_size": Published("32", "released code"),
    }

    adversarial_weight: FiniteFloat = Field(default=1.0, ge=0.0)
    divergence_weight: FiniteFloat = Field(default=0.5, ge=0.0)
    divergence: Divergence = "sym_kl"
    reduction: Reduction = "sum"
    attack_scope: Literal["example", "token", "batch", "matrix"] = "example"  # type: ignore[assignment]
    reuse: bool = True

    # As the released code: the whole embedding matrix moves, by a gradient that is thrown away.
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "released": {"epsilon": 1.0, "relative": False, "attack_scope": "matrix", "reuse": False}
    }

    def check(self) -> None:
        """Refuse geometries that a matrix has not, and warn of a divergence that does nothing."""
        super().check()
        fixed = (self.relative, self.norm, self.site)
        if self.attack_scope == "matrix" and fixed != (False, "l2", "word"):
            raise ValueError(
                "attack_scope='matrix' moves the matrix of the word embeddings by an absolute "
                "epsilon in the l2 norm: set relative=False, norm='l2' and site='word', got "
                f"relative={self.relative}, norm={self.norm!r} and site={self.site!r}"
            )
        check_attack_off(self, divergence_weight=self.divergence_weight)
        warn_of_small_divergence(type(self).__name__, self.coupling)

    @property
    def coupling(self) -> Coupling:
        """What holds the passes together."""
        return Coupling(self.divergence_weight, self.divergence, self.reduction)

    def off(self) -> Self:
        """Switch the attacked passes off."""
        return self._with(adversarial_weight=0.0, divergence_weight=0.0)

    def objective(self) -> Objective:
        """Return the forward stage."""
        if not self.adversarial_weight and not self.divergence_weight:
            return Clean()
        attack = AdversarialLoss(
            self.perturbation(),
            SubModels(passes=2),
            weight=self.adversarial_weight,
            coupling=self.coupling,
            reuse=self.reuse,
        )
        return Joint(Clean(weight=1.0), (attack,))

    def build(self) -> Method:
        """Return the method."""
        return Method("r_at", self, self.objective())
