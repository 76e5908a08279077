"""JacHess: hidden states that change slowly with the embeddings, at every layer.

``L = CE(x) + eta * sum_l lambda_l (||J_l||_F^2 + mean_i ||H_{l,i}||_F^2)``, ``J_l = dh_l/dx`` and
``H_{l,i} = d2 h_{l,i}/dx2``, h_l the state of layer l at the position that the head reads, x the
word embeddings.

Source: Jukic and Snajder, TACL 2025. Differs: the norms are estimated in 13F where the paper's loop
takes hundreds (docs/methods/jachess.md); the Hessian term of the released code carries no gradient,
and its decoders read the last position though it be padding; the paper's printed layer weights
``softmax(-s)`` saturate to one layer and are an option; the embedding table has no gradient of the
penalty.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from temper.backward.layer_norms import LayerNorms
from temper.forward.smoothness import Layers
from temper.functional.smoothness import Strategy
from temper.methods.method import Method
from temper.methods.published import Published
from temper.methods.registry import register
from temper.methods.smoothness import SmoothnessConfig

NORM_ROWS = 256


@register(
    "jachess",
    summary="Jacobian and Hessian norms of every layer held small",
    cost="13F (four-point 13F of cheaper passes; Jacobian alone 7F; every k steps 3F + 10F/k)",
    memory="activations of two passes and of their gradients",
    paper="Jukic and Snajder, TACL 2025",
)
class JacHess(SmoothnessConfig):
    """Settings of JacHess, with those of every smoothness penalty.

    Args:
        layers: ``all`` blocks, or the ``logits`` alone (the paper's ablation).
        strategy: Weights of the layers from the base model's Jacobian norms s, which are measured
            once before training: ``log`` is ``softmax(-log(s) / temperature)``; ``normalised``
            that at temperature 1 (the paper's best); ``printed`` is ``softmax(-s)``; ``uniform``;
            ``inverse`` is ``s / sum(s)``.
        temperature: Of ``log``, above 0; high values are nearly uniform.
        norm_rows: Training rows that s is measured on, at least 1.
    """

    PUBLISHED: ClassVar[dict[str, Published]] = {
        "weight": Published("the learning rate", "the paper"),
        "jacobian_weight": Published("1", "the paper"),
        "hessian_weight": Published("1", "the paper"),
        "layers": Published("all", "the paper; logits as ablation"),
        "scheme": Published("loop", "released code"),
        "dimensions": Published("10; 0, 5, 20 and 50 as ablation", "the paper"),
    }

    # The paper: eta is the learning rate.
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"weight": 2e-5, "strategy": "normalised"},
        "printed": {"weight": 2e-5, "strategy": "printed"},
        "lazy": {"every": 4},
    }

    layers: Layers = "all"
    strategy: Strategy = "log"
    temperature: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)
    norm_rows: int = Field(default=NORM_ROWS, ge=1)

    @model_validator(mode="after")
    def _refuse_unread_layer_settings(self) -> Self:
        if self.temperature != 1.0 and (self.strategy != "log" or self.layers == "logits"):
            raise ValueError(
                "temperature is read with strategy='log' and layers='all' only, got "
                f"strategy={self.strategy!r} and layers={self.layers!r}"
            )
        measured = self.layers == "all" and self.strategy != "uniform"
        if self.norm_rows != NORM_ROWS and not measured:
            raise ValueError(
                "norm_rows is read where norms are measured only, got "
                f"strategy={self.strategy!r} and layers={self.layers!r}"
            )
        if self.layers == "logits" and self.strategy != "log":
            raise ValueError(
                f"strategy is read with layers='all' only, got strategy={self.strategy!r}"
            )
        return self

    def norms(self) -> LayerNorms:
        """Return what weighs the layers."""
        if self.layers == "logits":
            return LayerNorms("uniform")
        twice = self.scheme != "four_point"
        return LayerNorms(self.strategy, self.temperature, self.norm_rows, twice=twice)

    def build(self) -> Method:
        """Return the method."""
        return self.method(layers=self.layers, norms=self.norms())
