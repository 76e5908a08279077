"""RoAST's objective: the loss at an adversarial step, and its divergence from the clean pass.

``L = clean_weight * CE(x) + adversarial_weight * CE(x~) + divergence_weight * symKL(x, x~)``, with
symKL summed over the batch. The attacked embeddings are ``x~ = x + n + epsilon * g / max_h
|g[b,t,h]|`` for each token, with noise ``n ~ U(0, 1) * noise`` and ``g`` the gradient of the clean
loss at ``x + n``.

Source: RoAST (arXiv 2312.04032) without its mask; released code bbuing9/RoAST. Differs: the clean
pass runs at ``x + n`` and yields the gradient of the attack (7F; the released code has a separate
attack pass, 8F); padding is masked (the released code runs without an attention mask). In the
released code the adversarial loss is in an unreachable branch, and all of ``x~`` is detached:
preset ``released``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from temper.forward import Losses, Noise, Plan, StepContext, plain, with_weight
from temper.forward.consistency import consistency
from temper.functional.losses import Divergence
from temper.functional.norms import Norm
from temper.lazy import Tensor
from temper.methods import register
from temper.methods.attack import AttackConfig, check_divergence
from temper.methods.bounds import Nonnegative
from temper.types import Reduction, Step


@register(
    "adv_embed",
    summary="Loss under an embedding attack, and its divergence from the clean pass",
    cost="7F",
    memory="activations of two passes",
    paper="RoAST, arXiv 2312.04032",
)
class AdvEmbed(AttackConfig):
    """Settings of RoAST's objective and of its attack."""

    OFF: ClassVar = {"clean_weight": 1.0, "adversarial_weight": 0.0, "divergence_weight": 0.0}

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        # transformers/models/*/modeling_*.py of the released code, run.sh's settings.
        "released": {"adversarial_weight": 0.0, "divergence_weight": 0.01, "detached": True},
    }

    epsilon: Nonnegative = Field(
        default=0.1, description="Largest entry of each token's attack step (the paper: 0.1)."
    )
    relative: bool = Field(
        default=False, description="Whether epsilon is a fraction of the token's norm."
    )
    norm: Norm = Field(
        default="linf_scaled",
        description="`linf_scaled` as published (direction kept), `l2` or `linf` (its sign).",
    )
    attack_scope: Literal["example", "token", "batch"] = Field(
        default="token", description="`token` as published, `example` or `batch`."
    )
    site: Literal["word", "output"] = Field(
        default="output",
        description="`output` of the embeddings block as published, or `word` embeddings.",
    )
    noise: Nonnegative = Field(
        default=1e-5,
        description="Upper limit of the uniform noise on the clean pass (released code: 1e-5).",
    )
    clean_weight: Nonnegative = Field(default=0.5, description="Weight of the clean loss.")
    adversarial_weight: Nonnegative = Field(
        default=0.5,
        description="Weight of the adversarial loss. If it is 0, set `divergence_weight` too: 0 "
        "switches the attack off.",
    )
    divergence_weight: Nonnegative = Field(
        default=0.01, description="Weight lambda of the divergence from the clean pass."
    )
    divergence: Divergence = Field(
        default="sym_kl", description="Type of divergence: `sym_kl` as published, or `js`."
    )
    reduction: Reduction = Field(
        default="sum",
        description="Reduction of the divergence over the rows: `sum` as released, or `mean`.",
    )
    same_dropout: bool = Field(
        default=False,
        description="Whether both passes use the same dropout masks (released code: no).",
    )
    detached: bool = Field(
        default=False,
        description="Whether the embeddings get no gradient from the perturbed pass (released "
        "code: yes).",
    )

    def check(self) -> None:
        super().check()
        if not (self.clean_weight or self.adversarial_weight or self.divergence_weight):
            raise ValueError(
                "clean_weight, adversarial_weight and divergence_weight are all 0, so nothing "
                "is minimized; set one of them above 0"
            )
        check_divergence(self, self.divergence_weight)

    def plan(self, now: Step) -> Plan:
        if not self.adversarial_weight and not self.divergence_weight:
            return plain(self.clean_weight)
        dropout = {"sub-models"} if self.same_dropout else set()
        return Plan(
            clean=True,
            task_weight=self.clean_weight,
            # The attack ascends from the noised embeddings x + n, so the clean pass runs there.
            start=self._noise,
            site=self.site,
            gradient=True,
            conflicts=frozenset({"perturbation", *dropout}),
        )

    def _noise(self, step: StepContext) -> Tensor:
        """Draw the noise n [B, T, D], uniform on ``[0, noise]``."""
        noise = Noise(
            self.noise, law="positive", site=self.site, special_tokens=self.special_tokens
        )
        return step.noise(noise, "consistency")

    def losses(self, step: StepContext) -> Iterator[Losses]:
        """Yield the clean loss, the adversarial loss and symKL in one total."""
        clean = step.clean
        assert clean.start is not None
        if not self.epsilon:
            step.network.expect_dropout()
        # g at x + n. Reading it before the backward of the total costs 1F.
        # epsilon * g / max_h |g[b,t,h]|, [B, T, D].
        ascent = self.attack_step(step, clean.gradient, clean.embeddings)
        delta = clean.start.detach() + ascent  # x~ - x, [B, T, D]
        # f(x~), [B, U, C], and symKL
        perturbed, term = consistency(self, step, delta, weight=self.divergence_weight)
        adversarial = step.task([perturbed], name="adversarial", weight=self.adversarial_weight)
        yield [clean.task, *with_weight(adversarial, term)]
