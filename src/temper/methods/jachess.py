"""JacHess: penalize Jacobian and Hessian norms of the hidden states of every layer.

``L = CE(x) + eta * sum_l lambda_l (||J_l||_F^2 + mean_i ||H_{l,i}||_F^2)``, ``J_l = dh_l/dx`` and
``H_{l,i} = d2 h_{l,i}/dx2``, with h_l the state of layer l at the position that the head reads, and
x the word embeddings (Eq. 4). Both norms are estimated by random projections (Eqs. 1 to 3), and the
layer weights lambda_l follow from the Jacobian norms of the base model (Eq. 5).

Source: Jukic and Snajder, TACL 2025. Differs (docs/methods/jachess.md): the estimate takes 13F
instead of hundreds; the Hessian term has a gradient, unlike in the released code, whose decoders
also read padding; the printed layer weights ``softmax(-s)``, which saturate to one layer, are
optional; the embedding table gets no gradient of the penalty.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from temper.backward.layer_jacobians import LayerJacobians
from temper.methods import register
from temper.methods.bounds import Count, Positive
from temper.methods.smoothness import SmoothnessConfig
from temper.methods.variants import Variant, variant


class _Measured(Variant):
    """Layer weights from the base model's Jacobian norms s, measured before training."""

    rows: Count = Field(
        default=256,
        description="Number of training rows on which the Jacobian norms s are measured.",
    )


class Log(_Measured):
    """``softmax(-log(s) / temperature)``."""

    kind: Literal["log"] = "log"
    temperature: Positive = Field(
        default=1.0,
        description="Temperature of the softmax; high values give nearly uniform weights.",
    )


class Normalized(_Measured):
    """``log`` at temperature 1: the paper's best."""

    kind: Literal["normalized"] = "normalized"


class Printed(_Measured):
    """``softmax(-s)``, as the paper prints it."""

    kind: Literal["printed"] = "printed"


class Inverse(_Measured):
    """``s / sum(s)``."""

    kind: Literal["inverse"] = "inverse"


class Uniform(Variant):
    """The same weight for all layers, without a measurement."""

    kind: Literal["uniform"] = "uniform"


class Logits(Variant):
    """A penalty on the logits only, not on the blocks (the paper's ablation)."""

    kind: Literal["logits"] = "logits"


@register(
    "jachess",
    summary="Penalty on the Jacobian and Hessian norms of every layer",
    cost="13F (`four_point`: 13F, but cheaper passes; Jacobian alone 7F; every k steps 3F + 10F/k)",
    memory="activations of two passes and of their gradients",
    paper="Jukic and Snajder, TACL 2025",
)
class JacHess(SmoothnessConfig):
    """Settings of JacHess."""

    # The paper: eta is the learning rate.
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"strength": {"weight": 2e-5}, "layers": "normalized"},
        "printed": {"strength": {"weight": 2e-5}, "layers": "printed"},
        "lazy": {"every": 4},
    }

    layers: Log | Normalized | Printed | Inverse | Uniform | Logits = variant(
        Log(),
        "Penalized states: all blocks, weighted by `log`, `normalized`, `printed`, "
        "`inverse` or `uniform`, or only the `logits`.",
    )

    @property
    def smoothed(self) -> Literal["all", "logits"]:
        return "logits" if isinstance(self.layers, Logits) else "all"

    def layer_jacobians(self) -> LayerJacobians:
        if isinstance(self.layers, Logits):
            return super().layer_jacobians()
        twice = self.scheme.kind != "four_point"
        return LayerJacobians(self.layers.kind, **self.layers.values, twice=twice)
