"""Embedding noise: the metric against the size of Gaussian noise, ``e + sigma v``, and its area.

``v`` is standard normal on every real token and keyed by seed, row and the sigma's place in the
settings, so no row's noise depends on where the row stands or on its batch.

References: JacHess, Eq. 6.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from temper.errors import ModelError
from temper.evaluation.curves import curve_entries
from temper.evaluation.measurement import Measurement, block_of
from temper.evaluation.perspectives.contract import Perspective
from temper.evaluation.predictor import Part
from temper.evaluation.rows import Block, Condition
from temper.evaluation.scoring import Entry, Scoring
from temper.functional.resampling import FloatArray
from temper.functional.smoothness import root_mean_square
from temper.seeding import derive_seed, generator


def rows(measurement: Measurement) -> Iterable[Block]:
    """Predict the dev rows at every sigma."""
    settings = measurement.settings
    examples, index = measurement.attacked()
    answers: list[FloatArray] = []
    spread = np.empty(len(examples))
    with measurement.perturbable.session() as session, torch.no_grad():
        done = 0
        for part in session.parts(examples, batch_size=settings.batch_size):
            embeddings = session.embeddings(part)
            own = root_mean_square(embeddings.double(), part.batch.mask)
            spread[part.indices] = own.cpu().numpy()
            for number, sigma in enumerate(settings.sigmas):
                scale = own * sigma if settings.noise_relative else torch.full_like(own, sigma)
                noise = standard_noise(part, embeddings, seed=settings.seed, key=number)
                delta = noise * scale.float()[:, None, None]
                answer = session.logits(part, delta=delta).double().cpu().numpy()
                if number == len(answers):
                    answers.append(np.empty((len(examples), answer.shape[-1])))
                answers[number][part.indices] = answer
            done += len(part.indices)
            measurement.tell(done, len(examples), "embedding noise")
    if not answers:
        raise ModelError("The dev set has no rows to add noise to.")
    condition = Condition("embedding_noise", "dev", "noise")
    for sigma, logits in zip(settings.sigmas, answers, strict=True):
        asked = np.full(len(examples), sigma)
        relative = settings.noise_relative
        yield replace(
            block_of(condition, examples, measurement.read(logits), index=index),
            radius=asked * spread if relative else asked,
            radius_relative=asked if relative else asked / spread,
            relative=relative,
        )


def score(scoring: Scoring) -> list[Entry]:
    """Score each sigma, and the area under the curve from no noise to the largest sigma."""
    return curve_entries(scoring, scoring.of("embedding_noise"))


def standard_noise(part: Part, embeddings: Tensor, *, seed: int, key: int) -> Tensor:
    """Draw standard normal noise for each row's real tokens.

    Args:
        part: The batch.
        embeddings: Its embeddings [B, T, D], for the shape.
        seed: Seed of the evaluation.
        key: Position of the sigma in the settings.

    Returns:
        [B, T, D] fp32, zero at padding, on the embeddings' device.
    """
    noise = torch.zeros(embeddings.shape, dtype=torch.float32)
    for place, (row, mask) in enumerate(zip(part.rows, part.batch.mask.cpu(), strict=True)):
        draws = generator(derive_seed(seed, "noise", row, key))
        noise[place, mask] = torch.randn(int(mask.sum()), noise.shape[-1], generator=draws)
    return noise.to(embeddings.device)


EMBEDDING_NOISE = Perspective(
    name="embedding_noise",
    summary="Embedding noise: the metric under Gaussian noise, and the area under its curve",
    scores=("area", "accuracy", "macro_f1", "mcc", "f1", "pearson", "spearman", "mse"),
    rows=rows,
    score=score,
    reads=("sigmas", "noise_relative", "attack_rows"),
    needs="embeddings",
)
