"""FreeLB: adversarial training on every step of an ascent on the embeddings.

``L = 1/K sum_k CE(x + d_k)``, with ``d_0 = U(-1, 1) * init / sqrt(n D)`` on the n real tokens, and
``d_{k+1} = project(d_k + step_size * g_k / ||g_k||_2)`` per example. ``g_k`` is the gradient of the
k-th loss by ``d_k``. All K passes use the same dropout masks.

Source: Zhu et al., ICLR 2020 (arXiv 1909.11764); released code zhuchen03/FreeLB@eb23701. Differs:
by default, sizes are fractions of the example's embedding norm, and ``d_0`` is 0 (the authors'
advice in issue #10); presets have the published values. ``d_0`` is projected too, which has no
effect at published values. ``clean_weight`` adds the clean loss.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import Field

from temper.forward import Losses, Noise, Plan, StepContext, plain
from temper.functional import norms
from temper.lazy import Tensor, torch
from temper.methods import Method, register
from temper.methods.bounds import Nonnegative, Positive
from temper.types import Step

logger = logging.getLogger(__name__)

# One step of 0.17 of the embeddings' norm (1.0 on MiniLM) reduced accuracy to chance.
FAR = 0.15


def _published(step_size: float, init: float, max_norm: float, passes: int) -> dict[str, Any]:
    return {
        "step_size": step_size,
        "init": init,
        "max_norm": max_norm,
        "passes": passes,
        "relative": False,
    }


@register(
    "freelb",
    summary="Embedding attack of K steps, all of which contribute to the gradient",
    cost="3KF (+3F with the clean loss)",
    memory="none",
    paper="Zhu et al., ICLR 2020",
)
class FreeLB(Method):
    """Settings of FreeLB."""

    OFF: ClassVar = {"adversarial_weight": 0.0, "clean_weight": 1.0}

    # Fairseq's script counts ascents (adv_steps), so that K is one more; ALBERT's counts passes.
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "roberta_large_mnli": _published(0.1, 0.1, 0.3, 3),
        "roberta_large_qnli": _published(0.1, 0.2, 0.2, 3),
        "roberta_large_qqp": _published(0.15, 0.32, 0.62, 3),
        "roberta_large_sst2": _published(0.1, 1.0, 0.6, 3),
        "roberta_large_mrpc": _published(0.04, 0.64, 0.4, 4),
        "roberta_large_cola": _published(0.025, 0.4, 0.3, 4),
        "roberta_large_stsb": _published(0.1, 0.16, 0.28, 4),
        # Commented out in the script, next to 0.03; used in issue #11.
        "roberta_large_rte": _published(0.06, 0.16, 0.14, 4),
        "albert_xxl_mnli": _published(0.04, 0.08, 0.0, 3),
        "albert_xxl_qnli": _published(0.05, 0.1, 0.0, 3),
        "albert_xxl_qqp": _published(0.2, 0.32, 0.7, 3),
        "albert_xxl_sst2": _published(0.1, 0.6, 0.0, 2),
        "albert_xxl_mrpc": _published(0.03, 0.0, 0.0, 4),
        "albert_xxl_cola": _published(0.04, 0.05, 0.0, 3),
        "albert_xxl_stsb": _published(0.1, 0.2, 0.0, 3),
        "albert_xxl_rte": _published(0.1, 0.0, 0.0, 3),
    }

    SIZE: ClassVar[str] = "step_size"

    passes: int = Field(
        default=3,
        ge=2,
        le=64,
        description="Number K of passes, including the one at the starting point.",
    )
    adversarial_weight: Nonnegative = Field(
        default=1.0, description="Weight of the mean loss of the K passes."
    )
    clean_weight: Nonnegative = Field(
        default=0.0, description="Weight of the additional clean loss."
    )
    step_size: Positive = Field(
        default=0.0125,
        description="l2 length of each example's step (the paper: 0.025 to 0.2 absolute).",
    )
    init: Nonnegative = Field(
        default=0.0,
        description="Size of the random start, whose l2 norm is about init / sqrt 3 (the paper: 0 "
        "to 1 absolute). With 0 the first pass is the clean one.",
    )
    max_norm: Nonnegative = Field(
        default=0.0,
        description="Maximum l2 norm of delta (the paper: 0 to 0.7 absolute); 0 is no limit.",
    )
    relative: bool = Field(
        default=True,
        description="Whether step_size, init and max_norm are fractions of the example's "
        "embedding norm, which transfer between models. 0.0125 is about 0.075 "
        "absolute on MiniLM.",
    )
    special_tokens: bool = Field(
        default=True, description="Also perturb special tokens such as [CLS] and [SEP]."
    )

    def check(self) -> None:
        super().check()
        if not self.adversarial_weight:
            if not self.clean_weight:
                raise ValueError(
                    "adversarial_weight and clean_weight are both 0, so nothing is minimized; set "
                    "one of them"
                )
            return
        reach = self.init / math.sqrt(3) + (self.passes - 1) * self.step_size
        reach = min(reach, self.max_norm) if self.max_norm else reach
        if self.relative and reach > FAR:
            logger.warning(
                "FreeLB's perturbation reaches %.2g of the embeddings' norm, which may reduce "
                "accuracy to chance. Lower step_size, init or passes, or set max_norm; absolute "
                "sizes need relative=False.",
                reach,
            )

    def plan(self, now: Step) -> Plan:
        if not self.adversarial_weight:
            return plain(self.clean_weight)
        return Plan(
            totals=self.passes,
            task_weight=self.clean_weight,
            conflicts=frozenset({"perturbation"}),
        )

    def losses(self, step: StepContext) -> Iterator[Losses]:
        """Yield ``1/K CE(x + d_k)``, one total per pass (Algorithm 1)."""
        network, batch = step.network, step.batch
        embeddings = network.embeddings(batch)  # x, [B, T, D]
        mask = network.movable(batch, special_tokens=self.special_tokens)
        unit = norms.size(norms.masked(embeddings, mask), norm="l2")  # [B, 1, 1]
        if not self.relative:
            unit = torch.ones_like(unit)
        delta = self._inside_ball(self._start(step, embeddings) * unit, unit)  # d_0, [B, T, D]
        first = torch.zeros(())  # becomes the mean loss at d_0
        for k in range(self.passes):
            delta = delta.detach().requires_grad_()
            # All K passes share dropout masks, so that the steps ascend one function.
            logits = step.logits("adversarial", delta=delta)  # f(x + d_k), [B, U, C]
            weight = self.adversarial_weight / self.passes
            term = step.task((logits,), name="adversarial", weight=weight)
            mean_loss = term.rows.detach().mean()
            first = mean_loss if k == 0 else first
            if k == self.passes - 1:
                step.note_size(delta, embeddings)
                step.notes["attack/loss_rise"] = mean_loss - first
            yield [term]
            # Free the used graph before the next pass.
            del logits, term
            if k < self.passes - 1:
                # g_k is in delta.grad; the gradients of the weights include other micro-batches.
                if delta.grad is None:
                    raise ValueError("Run backward on each total before asking for the next.")
                direction = norms.steepest(norms.masked(delta.grad, mask), norm="l2")  # g / ||g||_2
                delta = delta.detach() + direction * (self.step_size * unit)
                delta = self._inside_ball(delta, unit)  # d_{k+1}

    def _start(self, step: StepContext, embeddings: Tensor) -> Tensor:
        """Draw d_0 [B, T, D], in units of the embedding norm if sizes are relative."""
        if not self.init:
            return torch.zeros_like(embeddings, dtype=step.network.delta_dtype)
        noise = Noise(self.init, per="length", special_tokens=self.special_tokens)
        return step.noise(noise, "adversarial")

    def _inside_ball(self, delta: Tensor, unit: Tensor) -> Tensor:
        """Project delta [B, T, D] to the l2 ball of radius ``max_norm * unit``."""
        if not self.max_norm:
            return delta
        return norms.project(delta, self.max_norm * unit, norm="l2")
