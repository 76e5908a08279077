"""Logistic regression on frozen embeddings: what a user may pick in place of fine-tuning.

An encoder as it is, the mean of its last hidden states scaled to length 1 (Sentence-BERT's), and a
multinomial logistic regression with an l2 penalty, whose strength five folds of the training rows
choose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax
from torch import Tensor, nn
from torch.nn.functional import normalize

from temper.data.examples import Examples
from temper.data.splitting import folds
from temper.errors import ModelError
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.predictor import in_order
from temper.functional.resampling import FloatArray, IntegerArray
from temper.models.hf import load_classifier
from temper.models.modes import in_mode
from temper.training.run import label_names

FROZEN: Final = "frozen_embeddings"
STRENGTHS: Final = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""Values of C, from which the folds choose."""
CHOOSING: Final = 5
BATCH: Final = 64


class FrozenClassifier(nn.Module):
    """A linear layer on the mean of an encoder's last hidden states.

    Args:
        classifier: A sequence classifier of Transformers, whose head is left aside.
        classes: How many there are.
    """

    def __init__(self, classifier: Any, *, classes: int) -> None:
        super().__init__()
        self.config, self.encoder = classifier.config, classifier.base_model
        self.head = nn.Linear(self.config.hidden_size, classes)

    def embed(self, input_ids: Tensor, attention_mask: Tensor, **inputs: Tensor) -> Tensor:
        """Return an embedding of length 1 of each row, [B, D]."""
        made = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **inputs)
        weights = attention_mask.unsqueeze(-1).to(made.last_hidden_state.dtype)
        return normalize((made.last_hidden_state * weights).sum(1) / weights.sum(1))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **inputs: Tensor) -> Tensor:
        """Return logits, [B, C]."""
        logits: Tensor = self.head(self.embed(input_ids, attention_mask, **inputs))
        return logits


def fit_frozen(
    model: str, rows: Examples, *, max_length: int, seed: int, device: str = "cpu"
) -> ClassifierPredictor:
    """Fit a classifier on frozen embeddings.

    Args:
        model: A short name, a Hub id or a folder with an encoder.
        rows: Labelled rows of a classification.
        max_length: Tokens a text is cut to.
        seed: Seed of the folds that choose the penalty.
        device: Where the encoder runs.

    Returns:
        The classifier, as a checkpoint is asked.

    Raises:
        ModelError: The model cannot be loaded, or is no encoder.
    """
    names = label_names(rows)
    classifier, tokenizer = load_classifier(model, labels=names, device=device)
    if getattr(classifier.config, "is_encoder_decoder", False) or not hasattr(
        classifier.config, "hidden_size"
    ):
        raise ModelError(f"{model} is no encoder, so it has no embeddings to leave frozen.")
    network = FrozenClassifier(classifier, classes=len(names)).to(classifier.device)
    predictor = ClassifierPredictor(network, tokenizer, max_length=max_length)
    indices: list[int] = []
    found = []
    with in_mode(network, training=False), torch.no_grad():
        for part in predictor.parts(rows, batch_size=BATCH):
            indices += part.indices
            found.append(network.embed(**part.batch.inputs))
    features = in_order(indices, found)
    labels = np.asarray(rows.labels, dtype=np.int64)
    best = min(
        STRENGTHS,
        key=lambda strength: _held_out_loss(
            features, labels, list(_parts(rows, seed)), strength, len(names)
        ),
    )
    weight, bias = logistic_regression(features, labels, classes=len(names), strength=best)
    with torch.no_grad():
        network.head.weight.copy_(torch.from_numpy(weight))
        network.head.bias.copy_(torch.from_numpy(bias))
    network.eval()
    return predictor


def logistic_regression(
    features: FloatArray, labels: IntegerArray, *, classes: int, strength: float
) -> tuple[FloatArray, FloatArray]:
    """Minimise ``C sum_i -log softmax(W x_i + b)[y_i] + ||W||^2 / 2`` by L-BFGS.

    Args:
        features: [n, D].
        labels: Class indices, [n].
        classes: How many there are.
        strength: C of scikit-learn's ``LogisticRegression``, > 0.

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

    found = minimize(
        objective,
        np.zeros(classes * (width + 1)),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 1000, "ftol": 1e-14, "gtol": 1e-8},
    ).x
    return found[: classes * width].reshape(classes, width), found[classes * width :]


def _parts(rows: Examples, seed: int) -> Iterator[list[int]]:
    """Yield the places of the rows of each fold."""
    for fold in folds(rows, CHOOSING, seed=seed):
        texts = set(fold.rows)
        yield [place for place, row in enumerate(rows.rows) if row in texts]


def _held_out_loss(
    features: FloatArray,
    labels: IntegerArray,
    parts: Sequence[list[int]],
    strength: float,
    classes: int,
) -> float:
    """Return the loss on each fold's rows of a model of the other folds', added up."""
    total = 0.0
    for held in filter(None, parts):
        rest = [place for part in parts if part is not held for place in part]
        if not rest:
            continue
        weight, bias = logistic_regression(
            features[rest], labels[rest], classes=classes, strength=strength
        )
        logits = log_softmax(features[held] @ weight.T + bias, axis=1)
        total -= float(logits[np.arange(len(held)), labels[held]].sum())
    return total
