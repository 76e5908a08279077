"""Representation: linear CKA of every layer's states with those of the pre-trained model.

Validation rows are shuffled by hash and split into batches, so that only the states of one batch
are in memory. Each batch and layer has three estimates of HSIC, and CKA is computed from their
means (`temper.functional.kernel_alignment`). States are read at the position of the head: [CLS] of
BERT, the last token before padding of decoders.

References: Kornblith et al., ICML 2019; Nguyen, Raghu and Kornblith, ICLR 2021.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
from pydantic import Field

from temper.data.examples import Examples
from temper.display.cells import Comparison, Row
from temper.display.charts import Figure, inner_layers, layer_label, layer_map
from temper.display.folders import Source
from temper.display.records import Parameters
from temper.display.views import Heading
from temper.errors import ModelError
from temper.evaluation.common_settings import CommonSettings, PerspectiveSettings
from temper.evaluation.measurement import EvaluationData, Measurement
from temper.evaluation.perspectives.registry import Perspective
from temper.evaluation.predictor import Predictor, StatePredictor, in_order
from temper.evaluation.rows import Block, Condition
from temper.evaluation.scoring import ScoreEntry, Scoring
from temper.functional.kernel_alignment import LEAST, kernel_alignment, unbiased_hsic
from temper.functional.resampling import FloatArray
from temper.functional.scores import ScoreFacts
from temper.functional.units import PLAIN
from temper.seeding import derive_seed

ALIKE = "the states of one of the two models hardly vary within the batches"
CKA = ScoreFacts(
    "cka", "CKA with the pre-trained model", None, None, ALIKE, PLAIN, measure=kernel_alignment
)
ESTIMATES = ("hsic_xy", "hsic_xx", "hsic_yy")
"""Conditions of the rows: HSIC of x, the evaluated model, and y, the pre-trained model."""


class RepresentationSettings(PerspectiveSettings):
    """Settings of the comparison of hidden states."""

    reference: str | None = Field(
        default=None,
        min_length=1,
        description="Pre-trained model to compare with: a folder, Hub id or short name. Default: "
        "the model that the checkpoint was fine-tuned from. In Python it is passed as "
        "`EvaluationData.reference`.",
    )
    batch: int = Field(default=64, ge=LEAST, description="Batch size of the CKA estimator.")


def rows(measurement: Measurement) -> Iterable[Block]:
    """Estimate HSIC of each batch of validation rows at every layer."""
    predictor, reference = measurement.predictor, measurement.reference
    dev, settings = measurement.dev, measurement.settings
    assert reference is not None
    assert isinstance(predictor, StatePredictor)
    parts = batches(
        dev.rows,
        settings.section("representation", RepresentationSettings).batch,
        seed=settings.seed,
    )
    result: dict[int, list[tuple[float, float, float]]] = {}
    done = 0
    for chosen in parts:
        examples = dev.select(chosen)
        states, other = (
            states_of(model, examples, batch_size=settings.batch_size)
            for model in (predictor, reference)
        )
        for layer, (one, two) in enumerate(zip(states, other, strict=True), start=1):
            estimates = unbiased_hsic(one, two), unbiased_hsic(one, one), unbiased_hsic(two, two)
            result.setdefault(layer, []).append(estimates)
        done += len(chosen)
        measurement.report(done, len(dev), "representation")
    hashes = [
        hashlib.blake2b(
            "".join(dev.rows[row] for row in chosen).encode(), digest_size=8
        ).hexdigest()
        for chosen in parts
    ]
    for layer, estimates_of in result.items():
        for name, values in zip(ESTIMATES, np.asarray(estimates_of).T, strict=True):
            condition = Condition("representation", "dev", name, Parameters(layer=layer))
            yield Block.of_values(condition, hashes, np.arange(len(parts)), values)


def score(scoring: Scoring) -> list[ScoreEntry]:
    """Compute CKA of each layer from the batches' estimates; n is the number of batches."""
    by_layer: dict[Parameters, dict[str, Block]] = {}
    for block in scoring.of("representation"):
        by_layer.setdefault(block.condition.parameters, {})[block.condition.name] = block
    entries = []
    for layer, blocks in by_layer.items():
        first = blocks[ESTIMATES[0]]
        values = [np.asarray(blocks[name].value, dtype=np.float64) for name in ESTIMATES]
        condition = Condition("representation", first.condition.set, "cka", layer)
        alignment = CKA.statistic(*values)
        entry = scoring.entry(condition, "cka", statistic=alignment, rows=len(first))
        # Resamples of one batch are all equal, so the interval would have no width.
        entries.append(entry if len(first) > 1 else entry | {"low": None, "high": None})
    return entries


def faults(predictor: Predictor, data: EvaluationData, settings: CommonSettings) -> list[str]:
    """Return an error if a model was named but not loaded."""
    named = settings.section("representation", RepresentationSettings).reference
    if named is None or data.reference is not None:
        return []
    return [
        f"`reference` names {named!r}, and no model was given. Load it and pass its predictor as "
        "EvaluationData(reference=...)."
    ]


def lacking(predictor: Predictor, data: EvaluationData) -> str:
    """Return why the states of the two models cannot be compared; tries it on one row."""
    if data.reference is None:
        return (
            "representation compares with the pre-trained model, and this model is unknown. "
            "Name it: --set evaluate.representation.reference=MODEL, or "
            "EvaluationData(reference=...)."
        )
    if len(data.dev) < LEAST:
        return f"representation needs at least {LEAST} rows of dev, got {len(data.dev)}."
    counts = []
    for who, asked in (("the model", predictor), ("the pre-trained model", data.reference)):
        assert isinstance(asked, StatePredictor)
        try:
            counts.append(len(states_of(asked, data.dev.select([0]), batch_size=1)))
        except ModelError as error:
            return f"representation cannot read the states of {who}: {error}"
    if counts[0] != counts[1]:
        return (
            f"representation compares layer by layer, and the model has {counts[0]} layers, the "
            f"pre-trained one {counts[1]}. Name the model that it was trained from (`reference`)."
        )
    return ""


def batches(row_hashes: Sequence[str], size: int, *, seed: int) -> list[list[int]]:
    """Split rows into random batches by a seeded hash; return the rows' positions.

    The remainder is spread over the batches, so each has from ``size`` to ``2 size - 1`` rows.
    Fewer than ``size`` rows are one batch.

    Example:
        >>> [len(batch) for batch in batches([str(row) for row in range(11)], 4, seed=0)]
        [6, 5]
    """
    order = sorted(
        range(len(row_hashes)),
        key=lambda index: (derive_seed(seed, "representation", row_hashes[index]), index),
    )
    parts = np.array_split(np.asarray(order, dtype=np.int64), max(1, len(order) // size))
    return [[int(index) for index in part] for part in parts]


def states_of(
    predictor: StatePredictor, examples: Examples, *, batch_size: int | None
) -> list[FloatArray]:
    """Read the hidden states of n rows, [n, D] of each layer, in the rows' order."""
    indices: list[int] = []
    parts = []
    for states in predictor.states(examples, batch_size=batch_size):
        indices += states.indices
        parts.append(states.layers)
    return [in_order(indices, layer) for layer in zip(*parts, strict=True)]


def last_layer(rows: Sequence[Row]) -> list[Row]:
    """Choose the rows of the last layer, which the head reads."""
    return sorted(rows, key=lambda row: row.key.parameters.number("layer") or 0.0)[-1:]


def figures(source: Source, comparison: Comparison) -> list[Figure]:
    """Draw CKA with the pre-trained model as a heat map of layers by methods, one per set."""
    return layer_map(
        comparison,
        comparison.of("representation", "cka"),
        "Similarity to the pre-trained model",
        "Linear CKA of each layer's states with those of the pre-trained model: 1 is the same "
        "up to rotation and scale. Neither higher nor lower is better.",
        "CKA",
        "batches",
    )


REPRESENTATION = Perspective(
    name="representation",
    title="Representation",
    order=130,
    heading=Heading.REPRESENTATIONS,
    explained="CKA is the similarity of two models' hidden states, from 0 to 1; 1 is the "
    "unchanged pre-trained model.",
    leads="cka",
    sums_up=last_layer,
    words=layer_label,
    minor=inner_layers,
    figures=figures,
    counts="batches",
    ranked=False,
    summary="linear CKA of every layer with the pre-trained model",
    scores=(CKA,),
    rows=rows,
    score=score,
    settings=RepresentationSettings,
    needs="states",
    faults=faults,
    lacking=lacking,
    left_out="needs that model",
)
