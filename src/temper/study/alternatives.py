"""Alternatives to fine-tuning, which `temper tune` compares with its recipes.

The mean of an encoder's last hidden states, scaled to length 1 (Sentence-BERT), is the input of a
multinomial logistic regression with an l2 penalty, chosen on five folds of the training rows. The
encoder is frozen, or trained on pairs of texts by the package ``setfit`` (Tunstall et al. 2022).
"""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax

from temper.data.examples import Examples
from temper.data.splitting import fold_of_rows
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.predictor import in_order
from temper.functional.resampling import FloatArray, IntegerArray
from temper.models.hf import load_classifier
from temper.models.mean_pooled import mean_pooled
from temper.models.modes import in_mode
from temper.models.sentence import PAIRS, contrast
from temper.seeding import seeded
from temper.training.config import RunConfig, is_scratch
from temper.training.cost import PLAIN
from temper.training.prepared import label_names

STRENGTHS: Final = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""Values of C, the inverse l2 strength, to choose from."""
FOLDS: Final = 5
"""Number of folds that choose C."""
CHOICE_TOLERANCE: Final = 1e-4
"""Tolerance while C is chosen, as in scikit-learn: exact models take minutes."""
BATCH: Final = 64
PAIRED_ROWS: Final = 2000
"""Maximum rows for SetFit, whose number of pairs grows quadratically."""


@dataclass(frozen=True)
class Alternative:
    """A classifier that is not a recipe and has no settings to search.

    Args:
        name: Name, also of its column.
        length: Training cost of its encoder, relative to plain fine-tuning with the given settings.
    """

    name: str
    length: float = 0.0

    @property
    def seeded(self) -> bool:
        return self.length > 0

    def cost(self, run: RunConfig, rows: int) -> float:
        """Return the training cost relative to plain fine-tuning ``run``, embedding included."""
        return self.length + 1 / (PLAIN * passes_over_rows(run, rows))


def passes_over_rows(config: RunConfig, rows: int) -> float:
    """Return the number of times that a run reads each of ``rows`` training rows."""
    train = config.train
    per_step = train.batch_size * train.accumulation
    steps = train.max_steps or math.ceil(train.epochs * math.ceil(rows / per_step))
    return steps * per_step / rows


FROZEN: Final = Alternative("frozen_embeddings")
"""Logistic regression on frozen embeddings."""
SETFIT: Final = Alternative("setfit", length=3.0)


def alternatives(run: RunConfig, rows: Examples) -> list[Alternative]:
    """Return the installed alternatives that support the model and the rows."""
    if rows.kind != "classification" or is_scratch(run.model):
        return []
    fits = rows.text_pair is None and importlib.util.find_spec("setfit") is not None
    return [FROZEN, SETFIT] if fits else [FROZEN]


def fit_alternative(
    alternative: Alternative, run: RunConfig, rows: Examples, *, seed: int
) -> ClassifierPredictor:
    """Fit an alternative on rows with class labels.

    ``run`` is plain fine-tuning with the given settings: model, maximum length, device, and
    training steps of an encoder. ``seed`` draws SetFit's pairs and the folds.
    """
    predictor = frozen_predictor(run, label_names(rows), seed=seed)
    network: Any = predictor.model
    if alternative.length:
        texts = alternative.length * passes_over_rows(run, len(rows)) * len(rows)
        steps = max(1, round(texts / (2 * PAIRS)))
        order = np.random.default_rng(seed).permutation(len(rows))[:PAIRED_ROWS]
        contrast(
            network.encoder,
            predictor.tokenizer,
            [rows.text[index] for index in order],
            [(rows.labels or ())[index] for index in order],
            max_length=run.data.max_length,
            steps=steps,
            seed=seed,
        )
    of_row = np.asarray(fold_of_rows(rows, FOLDS, seed=seed))
    return LinearModel.choose(predictor, rows, of_row).fit()


@dataclass
class LinearModel:
    """A linear classifier on the frozen embeddings of an encoder.

    Args:
        predictor: The encoder with a linear layer.
        features: Embeddings of the rows, [n, D].
        labels: Class indices, [n].
        strength: C of the regression, chosen on the folds.
        logs: Log-probabilities of each row by a model that was not fitted on it, [n, C].
        seconds: Time of the forward passes for the embeddings.
    """

    predictor: ClassifierPredictor
    features: FloatArray
    labels: IntegerArray
    strength: float
    logs: FloatArray
    seconds: float

    @classmethod
    def choose(
        cls, predictor: ClassifierPredictor, rows: Examples, of_row: IntegerArray
    ) -> LinearModel:
        """Embed the rows, and choose the strength by the folds of the rows, ``of_row`` [n]."""
        begun = time.monotonic()
        features, labels = embeddings(predictor, rows), np.asarray(rows.labels, dtype=np.int64)
        seconds = time.monotonic() - begun
        strength, logs = choose_strength(features, labels, of_row, classes=len(label_names(rows)))
        return cls(predictor, features, labels, strength, logs, seconds)

    def fit(self, index: IntegerArray | None = None) -> ClassifierPredictor:
        """Fit the linear layer on the rows of ``index`` (None: all); return the classifier."""
        chosen = slice(None) if index is None else index
        weight, bias = logistic_regression(
            self.features[chosen],
            self.labels[chosen],
            classes=self.logs.shape[1],
            strength=self.strength,
        )
        network: Any = self.predictor.model
        network.set_head(weight, bias)
        return self.predictor


def frozen_predictor(
    run: RunConfig, classes: Sequence[str], *, seed: int = 0
) -> ClassifierPredictor:
    """Load a run's encoder, for `embeddings`, with a linear layer drawn from ``seed``."""
    # The head is fitted later, so that of the checkpoint is ignored.
    classifier, tokenizer = load_classifier(
        run.model, labels=classes, device=run.train.device, new_head=True
    )
    with seeded(seed):
        network = mean_pooled(classifier, classes)
    return ClassifierPredictor(network, tokenizer, max_length=run.data.max_length)


def embeddings(predictor: ClassifierPredictor, rows: Examples) -> FloatArray:
    """Return the embedding of each row by a `frozen_predictor`, [n, D], each of length 1."""
    network: Any = predictor.model
    indices: list[int] = []
    result = []
    with in_mode(network, training=False), torch.no_grad():
        for part in predictor.parts(rows, batch_size=BATCH):
            indices += part.indices
            result.append(network.embed(**part.batch.inputs)[0])
    return in_order(indices, result)


def logistic_regression(
    features: FloatArray,
    labels: IntegerArray,
    *,
    classes: int,
    strength: float,
    tolerance: float = 1e-8,
) -> tuple[FloatArray, FloatArray]:
    """Minimize ``C sum_i -log softmax(W x_i + b)[y_i] + ||W||^2 / 2`` by L-BFGS.

    Args:
        features: [n, D].
        labels: Class indices, [n].
        classes: Number of classes.
        strength: C of scikit-learn's ``LogisticRegression``, > 0.
        tolerance: Largest gradient entry of the mean loss at convergence.

    Returns:
        (W [classes, D], b [classes]).
    """
    count, width = features.shape
    hits = np.eye(classes)[labels]

    def objective(flat: FloatArray) -> tuple[float, FloatArray]:
        weight, bias = flat[: classes * width].reshape(classes, width), flat[classes * width :]
        logits = log_softmax(features @ weight.T + bias, axis=1)
        slope = (np.exp(logits) - hits) / count
        penalty = weight / (strength * count)
        loss = -(hits * logits).sum() / count + (penalty * weight).sum() / 2
        gradient = np.concatenate([(slope.T @ features + penalty).ravel(), slope.sum(0)])
        return float(loss), gradient

    result = minimize(
        objective,
        np.zeros(classes * (width + 1)),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 1000, "ftol": 1e-14, "gtol": tolerance},
    ).x
    return result[: classes * width].reshape(classes, width), result[classes * width :]


def choose_strength(
    features: FloatArray, labels: IntegerArray, of_row: IntegerArray, *, classes: int
) -> tuple[float, FloatArray]:
    """Choose the strength by cross-validated loss, for features [n, D] and class indices [n].

    ``of_row`` has the fold of each row. The result is the best of `STRENGTHS`, and its out-of-fold
    log-probabilities, [n, C].
    """
    tried = [(strength, np.zeros((len(labels), classes))) for strength in STRENGTHS]
    for strength, logs in tried:
        for fold in np.unique(of_row):
            held_out, rest = of_row == fold, of_row != fold
            if not rest.any():
                continue
            weight, bias = logistic_regression(
                features[rest],
                labels[rest],
                classes=classes,
                strength=strength,
                tolerance=CHOICE_TOLERANCE,
            )
            logs[held_out] = log_softmax(features[held_out] @ weight.T + bias, axis=1)
    indices = np.arange(len(labels))
    return max(tried, key=lambda item: float(item[1][indices, labels].sum()))
