"""R3F: the divergence between the clean pass and a pass with noise on the embeddings.

``L = CE(x) + weight * (KL(p || q) + KL(q || p)) / 2``, with p the clean output and q the output at
``x + z``. Each entry of the noise z is uniform on ``[-epsilon, epsilon]``, or normal with standard
deviation epsilon. A regression uses the squared difference.

Source: Aghajanyan et al., ICLR 2021 (arXiv 2008.03156); released code fairseq, examples/rxf,
without the factor 1/2, so its lambda is half of ``weight``. Differs: padding gets no noise; the
released code detaches the noised embeddings (``detached=True``), and ignores the divergence of a
regression.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from temper.forward import Losses, Noise, Plan, StepContext
from temper.forward.consistency import consistency
from temper.functional.losses import Divergence
from temper.methods import Method, register
from temper.methods.attack import warn_of_small_divergence
from temper.methods.bounds import Nonnegative
from temper.types import Reduction, Step

logger = logging.getLogger(__name__)

# Smaller noise moves logits by less than dropout or rounding does.
SMALLEST_NOISE = 1e-3


@register(
    "r3f",
    summary="Loss plus the divergence between clean and noised embeddings",
    cost="6F",
    memory="activations of two passes",
    paper="Aghajanyan et al., ICLR 2021",
)
class R3F(Method):
    """Settings of R3F."""

    OFF: ClassVar = {"weight": 0.0}

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        # fairseq examples/rxf, README: --r3f-lambda 0.7 for RTE, doubled because of our factor 1/2.
        "rte": {"weight": 1.4},
        "released": {"detached": True},
        # With the same dropout masks, the divergence is due to the noise alone.
        "noise": {"same_dropout": True, "epsilon": 0.01},
    }

    SIZE: ClassVar[str] = "epsilon"

    weight: Nonnegative = Field(
        default=2.0,
        description="Weight of the divergence; 0 is plain fine-tuning. The paper's lambda of 1 is "
        "2 here, because of the factor 1/2.",
    )
    epsilon: Nonnegative = Field(
        default=1e-5,
        description="Half width of uniform noise, or standard deviation of normal noise.",
    )
    law: Literal["uniform", "normal"] = Field(
        default="uniform", description="`uniform` or `normal` noise (the paper: both)."
    )
    divergence: Divergence = Field(
        default="sym_kl", description="Type of divergence: `sym_kl` as published, or `js`."
    )
    reduction: Reduction = Field(
        default="mean",
        description="Reduction of the divergence over the rows: `mean` as published, or `sum`.",
    )
    same_dropout: bool = Field(
        default=False,
        description="Whether both passes use the same dropout masks (released code: no, so that "
        "the divergence is mostly due to dropout). If so, noise below an epsilon of "
        "1e-3 has no effect.",
    )
    detached: bool = Field(
        default=False,
        description="Whether the embeddings get no gradient from the noised pass (released code: "
        "yes).",
    )
    site: Literal["word", "output"] = Field(
        default="word",
        description="`word` embeddings as published, or the `output` of the embeddings block.",
    )
    special_tokens: bool = Field(
        default=True, description="Also perturb special tokens such as [CLS] and [SEP]."
    )

    def check(self) -> None:
        super().check()
        if self.weight and self.same_dropout and self.epsilon < SMALLEST_NOISE:
            logger.warning(
                "R3F: with same_dropout=True the passes differ by the noise alone, and noise of "
                "epsilon=%g moves the logits little more than fp32 rounds them: the method is "
                "inert. Use an epsilon of %g or more.",
                self.epsilon,
                SMALLEST_NOISE,
            )
        warn_of_small_divergence(self, self.weight)

    def plan(self, now: Step) -> Plan:
        if not self.weight:
            return Plan()
        dropout = {"sub-models"} if self.same_dropout else set()
        conflicts = frozenset({"perturbation", *dropout})
        return Plan(clean=True, task_weight=1.0, conflicts=conflicts)

    def losses(self, step: StepContext) -> Iterator[Losses]:
        """Yield ``CE(x)`` and ``weight * (KL(p || q) + KL(q || p)) / 2`` in one total."""
        if not self.same_dropout and self.epsilon < SMALLEST_NOISE:
            step.network.expect_dropout()
        noise = Noise(
            self.epsilon, law=self.law, site=self.site, special_tokens=self.special_tokens
        )
        delta = step.noise(noise, "consistency")  # z, [B, T, D]
        _q, term = consistency(self, step, delta, weight=self.weight)
        yield [step.clean.task, term]
