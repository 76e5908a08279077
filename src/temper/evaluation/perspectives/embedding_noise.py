"""Embedding noise: the task's metric under Gaussian noise ``e + sigma v`` on the embeddings.

The area is the mean of the metric over sigma. ``v`` is standard normal on every token except
padding, for completions on the prompt only. A row's noise depends on seed, row and the sigma's
index in the settings, not on its batch.

References: JacHess, Eq. 6.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from temper.display.cells import Comparison, ScoreKey
from temper.display.charts import Figure, strength_curves
from temper.display.folders import Source
from temper.display.records import Parameters
from temper.display.views import Heading
from temper.display.wording import described, title
from temper.evaluation.blocks import block_of
from temper.evaluation.common_settings import PerspectiveSettings, PositiveFloat
from temper.evaluation.measurement import Measurement
from temper.evaluation.perspectives.registry import ALL_KINDS, Perspective
from temper.evaluation.prediction import Prediction
from temper.evaluation.predictor import RowBatch, in_order
from temper.evaluation.rows import Block, Condition
from temper.evaluation.scoring import METRICS, ScoreEntry, Scoring, curve_entries
from temper.functional.smoothness import root_mean_square
from temper.lazy import torch
from temper.seeding import derive_seed, generator

if TYPE_CHECKING:
    from torch import Tensor


class EmbeddingNoiseSettings(PerspectiveSettings):
    """Settings of the embedding noise."""

    sigmas: tuple[PositiveFloat, ...] = Field(
        default=(0.25, 0.5, 1.0), description="Standard deviations of the noise."
    )
    relative: bool = Field(
        default=True,
        description="Standard deviations are fractions of the RMS of the example's embeddings, "
        "which transfers between models.",
    )


def rows(measurement: Measurement) -> Iterable[Block]:
    """Predict the validation rows at every sigma."""
    settings = measurement.settings
    noise = settings.section("embedding_noise", EmbeddingNoiseSettings)
    examples, index = measurement.attacked()
    indices: list[int] = []
    sizes: list[Tensor] = []
    predictions: list[list[Prediction]] = [[] for _ in noise.sigmas]
    with measurement.perturbable.session() as session, torch.no_grad():
        for part in measurement.parts(session, examples, "embedding noise"):
            embeddings = session.embeddings(part)
            rms = root_mean_square(embeddings.double(), part.movable)
            indices += part.indices
            sizes.append(rms)
            for number, sigma in enumerate(noise.sigmas):
                scale = rms * sigma if noise.relative else torch.full_like(rms, sigma)
                drawn = standard_noise(part, embeddings, seed=settings.seed, key=number)
                delta = drawn * scale.float()[:, None, None]
                logits = session.logits(part, delta=delta)
                predictions[number].append(measurement.predictions(part, logits))
    spread = in_order(indices, sizes)
    relative = noise.relative
    for sigma, parts in zip(noise.sigmas, predictions, strict=True):
        parameters = Parameters({"sigma_relative" if relative else "sigma": sigma})
        condition = Condition("embedding_noise", "dev", "noise", parameters)
        size = np.full(len(examples), sigma)
        prediction = measurement.joined(indices, parts)
        block = block_of(condition, examples, prediction, index=index)
        yield replace(
            block,
            measured={
                **block.measured,
                "sigma": size * spread if relative else size,
                "sigma_relative": size if relative else size / spread,
            },
        )


def score(scoring: Scoring) -> list[ScoreEntry]:
    """Score each sigma, and the area under the curve from no noise to the largest sigma."""
    blocks = scoring.of("embedding_noise")
    relative = any("sigma_relative" in block.condition.parameters for block in blocks)
    return curve_entries(scoring, blocks, "sigma_relative" if relative else "sigma")


def standard_noise(part: RowBatch, embeddings: Tensor, *, seed: int, key: int) -> Tensor:
    """Draw standard normal noise [B, T, D] in fp32; zero unless a token is `RowBatch.movable`.

    ``key`` is the position of the sigma in the settings.
    """
    noise = torch.zeros(embeddings.shape, dtype=torch.float32)
    for index, (row, mask) in enumerate(zip(part.rows, part.movable.cpu(), strict=True)):
        draws = generator(derive_seed(seed, "noise", row, key))
        noise[index, mask] = torch.randn(int(mask.sum()), noise.shape[-1], generator=draws)
    return noise.to(embeddings.device)


def words(key: ScoreKey) -> str:
    """Return the label of a score with its sigma."""
    name = "Area under the noise curve" if key.name == "area" else title(key.name)
    return ", ".join(part for part in (name, described(key.parameters, of="RMS"), key.set) if part)


def figures(source: Source, comparison: Comparison) -> list[Figure]:
    """Plot the task's metric against the size of the noise, one figure per set."""
    return strength_curves(
        comparison,
        "embedding_noise",
        "sigma",
        heading=lambda key: f"Gaussian noise, {key.set}",
        caption="The metric when normal noise is added to every embedding",
        relative_to="RMS",
    )


EMBEDDING_NOISE = Perspective(
    name="embedding_noise",
    title="Embedding noise",
    order=70,
    heading=Heading.ROBUSTNESS,
    explained="Random noise is added to each word's vector; the score is the area under the curve "
    "over its strengths.",
    leads="area",
    words=words,
    figures=figures,
    summary="the task's metric under Gaussian noise on the embeddings, and the area under its "
    "curve over the noise levels",
    scores=("area", *METRICS),
    kinds=ALL_KINDS,
    rows=rows,
    score=score,
    settings=EmbeddingNoiseSettings,
    perturbs=True,
    needs="embeddings",
)
