"""Mixup: train on mixtures of two rows of the batch, their losses mixed alike.

``L = clean_weight * CE(z_i, y_i) + weight * (q CE(z, y_i) + (1 - q) CE(z, y_j))``, z the logits of
``q x_i + (1 - q) x_j`` at the word embeddings or at the state before the last linear layer, ``q ~
Beta(alpha, alpha)`` for each row, j its partner in the micro-batch.

Source: Guo et al., arXiv 1905.08941; Verma et al., ICML 2019 (manifold mixup). Differs:
docs/methods/mixup.md.
"""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field, FiniteFloat

from temper.forward import Clean, Joint
from temper.forward.mixup import MixedLevel, Mixup
from temper.forward.objective import plain
from temper.methods import Method, MethodConfig, Published, register


@register(
    "mixup",
    summary="Mixtures of two rows, at the word embeddings or before the last layer",
    cost="3F (+3F with the clean loss at the words)",
    memory="none",
    paper="Guo et al., arXiv 1905.08941",
)
class MixupConfig(MethodConfig):
    """Settings of mixup.

    Args:
        weight: Weight of the mixtures' loss, at least 0.
        alpha: Of the Beta distribution of the shares, above 0: small ones leave most rows nearly
            as they are, 1 draws every share alike.
        level: What is mixed: ``words``, the word embeddings, or ``pooled``, the state that the last
            linear layer reads.
        clean_weight: Weight of the loss on the rows as they are, at least 0.
    """

    PUBLISHED: ClassVar[dict[str, Published]] = {
        "alpha": Published("1", "Guo et al."),
        "clean_weight": Published("0", "Guo et al."),
    }

    weight: FiniteFloat = Field(default=1.0, ge=0.0)
    alpha: FiniteFloat = Field(default=0.4, gt=0.0)
    level: MixedLevel = "words"
    clean_weight: FiniteFloat = Field(default=0.0, ge=0.0)

    def check(self) -> None:
        """Refuse to learn nothing."""
        super().check()
        if not self.weight and not self.clean_weight:
            raise ValueError("weight=0 and clean_weight=0 leave nothing to learn. Set one above 0")

    def off(self) -> Self:
        """Train on the rows as they are."""
        return self._with(weight=0.0, clean_weight=1.0)

    def build(self) -> Method:
        """Return the method."""
        if not self.weight:
            return Method("mixup", self, plain(self.clean_weight))
        part = Mixup(self.weight, self.alpha, self.level)
        return Method("mixup", self, Joint(Clean(weight=self.clean_weight), (part,)))
