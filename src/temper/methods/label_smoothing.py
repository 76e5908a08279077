"""Label smoothing: a share of every label is spread over all classes.

``L = CE(z, (1 - s) * onehot(y) + s / C)``, in every task loss of a composition.

Source: Szegedy et al., CVPR 2016, section 7.
"""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field, FiniteFloat

from temper.forward import Clean
from temper.methods import Method, MethodConfig, Published, register


@register(
    "label_smoothing",
    summary="A share of every label spread over all classes",
    cost="3F",
    memory="none",
    paper="Szegedy et al., CVPR 2016",
    claims="label smoothing",
)
class LabelSmoothing(MethodConfig):
    """Settings of label smoothing.

    Args:
        smoothing: Share s of each label that is spread over all classes, in [0, 1) (the paper:
            0.1); 0 is plain fine-tuning.
    """

    PUBLISHED: ClassVar[dict[str, Published]] = {
        "smoothing": Published("0.1", "the paper"),
    }

    smoothing: FiniteFloat = Field(default=0.1, ge=0.0, lt=1.0)

    def off(self) -> Self:
        """Leave the labels whole."""
        return self._with(smoothing=0.0)

    def build(self) -> Method:
        """Return the method."""
        return Method("label_smoothing", self, Clean(smoothing=self.smoothing))
