"""R-AT: the clean loss, the loss of two adversarial dropout passes, and their divergence.

``L = CE_c + 1/2 (CE_1 + CE_2) + 1/2 * symKL``, with ``symKL = (KL(1||2) + KL(2||1)) / 2`` summed
over the batch.

Source: Ni et al., Findings of EMNLP 2022; released code IKMLab/R-AT. Differs: UEGR's attack (per
example, epsilon a fraction of the embedding norm), which shares its backward with the clean loss
(9F). The preset ``released`` moves the whole embedding matrix by ``epsilon * G / ||G||_F`` and
computes its gradient in a separate pass (11F).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from temper.forward import Losses, Plan, StepContext, SubModels, with_weight
from temper.forward.perturbations import gradient_at, zeros
from temper.functional import norms
from temper.functional.losses import Divergence
from temper.lazy import Tensor, torch
from temper.methods import register
from temper.methods.attack import AttackConfig, check_divergence
from temper.methods.bounds import Nonnegative
from temper.types import Reduction, Step


@register(
    "r_at",
    summary="Two adversarial dropout passes and the divergence between them",
    cost="9F (released: 11F)",
    memory="activations of two passes",
    paper="Ni et al., Findings of EMNLP 2022",
)
class RAT(AttackConfig):
    """Settings of R-AT and of its attack."""

    OFF: ClassVar = {"adversarial_weight": 0.0, "divergence_weight": 0.0}

    adversarial_weight: Nonnegative = Field(
        default=1.0,
        description="Weight of the mean adversarial loss. If it is 0, set `divergence_weight` too: "
        "0 switches the attack off.",
    )
    divergence_weight: Nonnegative = Field(
        default=0.5, description="Weight of the divergence between the two adversarial passes."
    )
    divergence: Divergence = Field(
        default="sym_kl", description="Type of divergence: `sym_kl` as published, or `js`."
    )
    reduction: Reduction = Field(
        default="sum",
        description="Reduction of the divergence over the rows: `sum` as published, or `mean`.",
    )
    attack_scope: Literal["example", "token", "batch", "matrix"] = Field(  # type: ignore[assignment]
        default="example",
        description="Scope of the budget epsilon: each `example`, each `token`, the whole "
        "`batch`, or the `matrix` of the word embeddings, where all occurrences of a "
        "word move together.",
    )
    reuse: bool = Field(
        default=True,
        description="Whether clean loss and attack share one backward (9F). The released code "
        "computes the attack's gradient in a separate pass (11F).",
    )

    # As the released code: the whole embedding matrix moves, by the gradient of a separate pass.
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "released": {"epsilon": 1.0, "relative": False, "attack_scope": "matrix", "reuse": False}
    }

    def check(self) -> None:
        super().check()
        fixed = (self.relative, self.norm, self.site)
        if self.attack_scope == "matrix" and fixed != (False, "l2", "word"):
            raise ValueError(
                "attack_scope='matrix' perturbs the word embedding matrix by an absolute epsilon "
                "in the l2 norm. Set relative=False, norm='l2' and site='word'; got "
                f"relative={self.relative}, norm={self.norm!r} and site={self.site!r}"
            )
        check_divergence(self, self.divergence_weight)

    def plan(self, now: Step) -> Plan:
        if not self.adversarial_weight and not self.divergence_weight:
            return Plan()
        return Plan(
            clean=True,
            totals=int(self.reuse),
            task_weight=1.0,
            site=self.site,
            # Without `reuse` a separate pass computes the gradient.
            gradient=self.reuse,
            conflicts=frozenset({"perturbation", "sub-models"}),
        )

    def losses(self, step: StepContext) -> Iterator[Losses]:
        """Yield ``CE_c``, then the loss and the divergence of the two adversarial passes."""
        clean = step.clean
        if self.reuse:
            yield [clean.task]  # CE_c; its backward leaves the gradient w.r.t. the embeddings
            gradient, embeddings = clean.gradient, clean.embeddings  # [B, T, D]
        else:
            zero = zeros(step.network, step.batch, site=self.site)
            gradient, embeddings = gradient_at(step, zero, site=self.site)
        delta = self.delta(step, gradient, embeddings)  # [B, T, D]
        step.note_size(delta, embeddings)
        # 2 x [B, U, C]. Only one pass per backward pass may use the distributed wrapper; without
        # `reuse` that is the clean pass.
        logits = step.passes(SubModels(passes=2), delta=delta, site=self.site, wrapped=self.reuse)
        weight = self.divergence_weight
        terms = with_weight(
            step.task(logits, name="adversarial", weight=self.adversarial_weight),
            step.divergence(logits, self.divergence, self.reduction, weight=weight),
        )
        yield terms if self.reuse else [clean.task, *terms]

    def delta(self, step: StepContext, gradient: Tensor, embeddings: Tensor) -> Tensor:
        """Return the perturbation [B, T, D]; the scope ``matrix`` is ``epsilon G / ||G||_F``."""
        if self.attack_scope != "matrix":
            return self.attack_step(step, gradient, embeddings)
        mask = self.movable(step)
        # G, looked up at each token [B, T, D], and ||G||_F.
        looked_up, size = norms.vocabulary_gradient(
            norms.masked(gradient, mask), step.batch.ids, vocabulary=step.network.vocabulary
        )
        usable = (size > 0) & torch.isfinite(size)
        delta = looked_up / torch.where(usable, size, 1.0) * self.epsilon
        return torch.where(usable & mask.unsqueeze(-1), delta, 0.0)
