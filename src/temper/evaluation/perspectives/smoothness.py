"""Smoothness: how fast hidden states change with the word embeddings, layer by layer.

Let h_l be the state of layer l at the position that the head reads, and x the embeddings of a row's
tokens without padding. With the Jacobian ``J_l = dh_l/dx`` and the Hessians
``H_{l,i} = d2 h_{l,i}/dx2``, each row has estimates of ``||J_l||_F^2`` and of the mean over i of
``||H_{l,i}||_F^2``, also for the logits. Both are unbiased: with random signs v and u,
``E ||J_l^T v||^2 = ||J_l||_F^2`` and ``E ||d/dx(u . J_l^T v)||^2 = sum_i ||H_{l,i}||_F^2``. A row's
draws depend on seed, row, layer and projection, not on its batch. Weights in half precision are
converted to fp32, because they are too coarse for a Hessian.

References: Jukic and Snajder, TACL 2025 (JacHess), Eqs. 1 to 5. Differs: the Hessian is over all
dimensions of a state, where the paper takes some at random.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pydantic import Field

from temper.display.cells import Comparison, Row
from temper.display.charts import Figure, inner_layers, layer_label, layer_lines
from temper.display.folders import Source
from temper.display.records import Parameters
from temper.display.views import Heading
from temper.errors import ModelError
from temper.evaluation.common_settings import CommonSettings, PerspectiveSettings
from temper.evaluation.measurement import EvaluationData, Measurement
from temper.evaluation.perspectives.registry import Perspective
from temper.evaluation.predictor import PerturbablePredictor, Predictor, RowBatch, in_order
from temper.evaluation.rows import Block, Condition
from temper.evaluation.scoring import ScoreEntry, Scoring, mean_of
from temper.functional.intervals import standard_error
from temper.functional.scores import ScoreFacts
from temper.functional.smoothness import directions, probes, squared_norm, vector_jacobian_product
from temper.functional.units import ANY_SIZE
from temper.lazy import torch
from temper.seeding import derive_seed, generator

if TYPE_CHECKING:
    from torch import Tensor

    from temper.models.states import Trace

NORMS = {"jacobian": "jacobian_norm", "hessian": "hessian_norm"}
"""Condition of the rows -> name of the score."""
NOT_FINITE = "a row's norm is not a finite number"

LOGITS = "logits"
Layer = int | None
"""Number of a layer, from 1; None for the logits."""


class SmoothnessSettings(PerspectiveSettings):
    """Settings of the smoothness measurement."""

    rows: int = Field(
        default=64, ge=1, description="Maximum number of the `attack_rows` to measure."
    )
    projections: int = Field(
        default=4,
        ge=1,
        description="Random projections per row and layer; each costs two backward passes.",
    )


def rows(measurement: Measurement) -> Iterable[Block]:
    """Estimate both norms of some validation rows at every layer and at the logits."""
    settings = measurement.settings.section("smoothness", SmoothnessSettings)
    examples, index = measurement.attacked(at_most=settings.rows)
    indices: list[int] = []
    result: dict[Layer, list[Tensor]] = {}
    lacking = ""
    with measurement.perturbable.session(single=True) as session:
        for part in measurement.parts(session, examples, "smoothness"):
            trace = session.traced(part)
            states, reason = states_of(trace)
            lacking = lacking or reason
            indices += part.indices
            for layer, state in states.items():
                key = (measurement.settings.seed, layer)
                estimates = norms(part, trace, state, key, projections=settings.projections)
                result.setdefault(layer, []).append(estimates)
    if lacking:
        measurement.notices.append(f"Smoothness is measured only at the logits: {lacking}.")
        result = {None: result[None]}
    values = {layer: in_order(indices, estimates) for layer, estimates in result.items()}
    for number, name in enumerate(NORMS):
        for layer in result:
            parameters = Parameters() if layer is None else Parameters(layer=layer)
            condition = Condition("smoothness", "dev", name, parameters)
            yield Block.of_values(condition, examples.rows, index, values[layer][:, number])


def score(scoring: Scoring) -> list[ScoreEntry]:
    """Average each norm over the rows, separately for each layer."""
    entries = []
    for block in scoring.of("smoothness"):
        assert block.value is not None
        name, mean = NORMS[block.condition.name], mean_of(block.value)
        entry = scoring.entry(block.condition, name, statistic=mean, rows=len(block))
        entries.append(entry | {"standard_error": standard_error(block.value)})
    return entries


def faults(predictor: Predictor, data: EvaluationData, settings: CommonSettings) -> list[str]:
    """Return why a model cannot be differentiated twice."""
    assert isinstance(predictor, PerturbablePredictor)
    reason = predictor.lacks_second_derivative()
    return [f"smoothness: {reason} Or leave it out of `perspectives`."] if reason else []


def states_of(trace: Trace) -> tuple[dict[Layer, Tensor], str]:
    """Return layer -> tensor to differentiate: its state at the head's position [B, D].

    The logits [B, C] are under None. If there are only logits, the second result is the reason.
    """
    assert trace.logits is not None
    logits: dict[Layer, Tensor] = {None: trace.logits}
    if not trace.states:
        return logits, "the model has no repeated blocks"
    try:
        # Without a path from the words there is no gradient.
        reached = trace.logits.requires_grad and trace.states[-1].requires_grad
        states = trace.at_head() if reached else []
    except ModelError:
        states = []
    if not states:
        return logits, "they do not depend on the last layer, so the head's input is unknown"
    return {**dict(enumerate(states, start=1)), **logits}, ""


def norms(
    part: RowBatch, trace: Trace, state: Tensor, key: tuple[int, Layer], *, projections: int
) -> Tensor:
    """Estimate ``||J||_F^2`` and the mean of ``||H_i||_F^2`` of each row at a layer, [B, 2] fp64.

    ``state`` is the layer's output [B, D], and ``key`` the seed and the layer.
    """
    (seed, layer), words, mask = key, trace.root, part.batch.mask
    total = torch.zeros((len(state), len(NORMS)), dtype=torch.float64, device=state.device)
    for number in range(projections):
        # Random signs of each row, for the state and for the embeddings, 0 at padding.
        probe = torch.empty(state.shape, dtype=words.dtype)
        direction = torch.zeros(words.shape, dtype=words.dtype)
        for index, (row, tokens) in enumerate(zip(part.rows, mask.cpu(), strict=True)):
            draws = generator(derive_seed(seed, "smoothness", row, layer, number))
            probe[index] = probes((1, state.shape[-1]), "signs", draws, like=probe)[0]
            real = tokens[tokens].unsqueeze(0)
            direction[index, tokens] = directions(real, words.shape[-1], draws, like=direction)[0]
        probe, direction = probe.to(words.device), direction.to(words.device)
        gradient = vector_jacobian_product(state, words, probe, create_graph=True)
        change = vector_jacobian_product(gradient, words, direction)
        total[:, 0] += squared_norm(gradient.detach().double(), mask)
        total[:, 1] += squared_norm(change.double(), mask) / state.shape[-1]
    return total / projections


def of_logits(rows: Sequence[Row]) -> list[Row]:
    """Choose the rows of the logits, which every model has."""
    return [row for row in rows if "layer" not in row.key.parameters][:1]


def figures(source: Source, comparison: Comparison) -> list[Figure]:
    """Draw both norms at every layer and at the logits, one figure per norm and set."""
    drawn = []
    for name, norm, over in (
        ("jacobian_norm", "Jacobian", ""),
        ("hessian_norm", "Hessian", ", averaged over the state's dimensions"),
    ):
        drawn += layer_lines(
            comparison,
            comparison.of("smoothness", name),
            f"Smoothness by layer: {norm}",
            f"Mean over examples of the squared Frobenius norm of the {norm} by the word "
            f"embeddings{over}; lower is smoother.",
            f"squared {norm} norm",
            last=LOGITS,
        )
    return drawn


SMOOTHNESS = Perspective(
    name="smoothness",
    title="Smoothness",
    order=100,
    heading=Heading.REPRESENTATIONS,
    explained="How strongly the output reacts to small changes of the word embeddings: its squared "
    "derivatives, lower is smoother.",
    leads="jacobian_norm",
    sums_up=of_logits,
    words=partial(layer_label, otherwise=LOGITS),
    minor=inner_layers,
    figures=figures,
    ranked=False,
    summary="squared norms of every layer's Jacobian and Hessian with respect to the word "
    "embeddings, with standard errors",
    scores=(
        ScoreFacts("jacobian_norm", "Squared Jacobian norm", False, 0.0, NOT_FINITE, ANY_SIZE),
        ScoreFacts("hessian_norm", "Squared Hessian norm", False, 0.0, NOT_FINITE, ANY_SIZE),
    ),
    rows=rows,
    score=score,
    settings=SmoothnessSettings,
    perturbs=True,
    needs="embeddings",
    faults=faults,
    left_out="two backward passes per layer",
)
