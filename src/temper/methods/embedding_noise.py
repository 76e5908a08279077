"""NEFTune: uniform noise on the word embeddings of the training pass.

``L = CE(x + n)`` with ``n = U(-1, 1) * alpha / sqrt(n_b D)`` on the n_b real tokens of an example.
Its l2 norm is about alpha / sqrt 3 for any length.

Source: Jain et al., ICLR 2024 (arXiv 2310.05914). Differs: n_b counts real tokens, so the noise of
a row does not depend on other rows (the released code uses the padded length). Padding gets no
noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import Field

from temper.forward import Losses, Noise, Plan, StepContext
from temper.lazy import Tensor
from temper.methods import Method, register
from temper.methods.bounds import Nonnegative
from temper.types import Step


@register(
    "embedding_noise",
    summary="Uniform noise on the word embeddings (NEFTune)",
    cost="3F",
    memory="none",
    paper="Jain et al., ICLR 2024",
)
class EmbeddingNoise(Method):
    """Settings of NEFTune."""

    OFF: ClassVar = {"alpha": 0.0}

    # The sizes that the paper tries.
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "neftune_5": {"alpha": 5.0},
        "neftune_10": {"alpha": 10.0},
        "neftune_15": {"alpha": 15.0},
    }

    SIZE: ClassVar[str] = "alpha"

    alpha: Nonnegative = Field(
        default=5.0,
        description="Size of an example's noise; its l2 norm is about alpha / sqrt 3 (the paper: "
        "5, 10 or 15 on decoders of 7 billion weights); 0 is plain fine-tuning.",
    )
    special_tokens: bool = Field(
        default=True, description="Also perturb special tokens such as [CLS] and [SEP]."
    )

    def plan(self, now: Step) -> Plan:
        if not self.alpha:
            return Plan()
        conflicts = frozenset({"perturbation"})
        return Plan(clean=True, start=self._noise, conflicts=conflicts)

    def _noise(self, step: StepContext) -> Tensor:
        """Draw n = U(-1, 1) * alpha / sqrt(n_b D), [B, T, D]."""
        noise = Noise(self.alpha, per="length", special_tokens=self.special_tokens, targets=True)
        return step.noise(noise, "clean")

    def losses(self, step: StepContext) -> Iterator[Losses]:
        """Yield ``CE(x + n)``."""
        clean = step.clean
        assert clean.start is not None
        step.note_size(clean.start, clean.embeddings)
        yield [clean.task]
