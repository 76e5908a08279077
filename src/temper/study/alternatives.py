"""What a user may pick in place of fine-tuning, which `temper tune` judges beside its recipes.

An encoder, the mean of its last hidden states scaled to length 1 (Sentence-BERT's), and a
multinomial logistic regression with an l2 penalty, whose strength five folds of the training rows
choose: on the encoder as it is, or on one that the package ``setfit`` has trained on pairs of texts
(Tunstall et al. 2022).
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from temper.models.sentence import PAIRS, contrast
from temper.seeding import seeded
from temper.training.config import RunConfig, is_scratch
from temper.training.passes import PLAIN
from temper.training.prepared import label_names

STRENGTHS: Final = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""Values of C, from which the folds choose."""
CHOOSING: Final = 5
CHOICE_TOLERANCE: Final = 1e-4
"""As scikit-learn's: exact models of 10,000 rows took minutes, to choose a strength alone."""
BATCH: Final = 64
PAIRED_ROWS: Final = 2000
"""Rows that SetFit's pairs are drawn from: its list of pairs grows with their square."""


@dataclass(frozen=True)
class Alternative:
    """A way to a classifier that is no recipe: nothing about it is searched.

    Args:
        name: Its name, also of its column.
        title: What it is, in words.
        length: What training its encoder costs, plain fine-tuning at the given settings being 1.
    """

    name: str
    title: str
    length: float = 0.0

    @property
    def seeded(self) -> bool:
        """Whether another seed makes another model."""
        return self.length > 0

    def cost(self, run: RunConfig, rows: int) -> float:
        """Return what it costs, plain fine-tuning being 1: one more pass embeds each row.

        Args:
            run: Plain fine-tuning at the given settings.
            rows: Rows that it trains on.
        """
        return self.length + 1 / (PLAIN * passes_over_rows(run, rows))


def passes_over_rows(config: RunConfig, rows: int) -> float:
    """Return the number of times that a run sees a row, out of ``rows`` training rows."""
    train = config.train
    per_step = train.batch_size * train.accumulation
    steps = train.max_steps or math.ceil(train.epochs * math.ceil(rows / per_step))
    return steps * per_step / rows


FROZEN: Final = Alternative("frozen_embeddings", "logistic regression on frozen embeddings")
SETFIT: Final = Alternative("setfit", "SetFit", length=3.0)


def alternatives(run: RunConfig, rows: Examples) -> list[Alternative]:
    """Return those that suit a model and rows, and are installed.

    Args:
        run: Plain fine-tuning of the model.
        rows: The training rows.
    """
    if rows.kind != "classification" or is_scratch(run.model):
        return []
    fits = rows.text_pair is None and importlib.util.find_spec("setfit") is not None
    return [FROZEN, SETFIT] if fits else [FROZEN]


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


def fit_alternative(
    alternative: Alternative, run: RunConfig, rows: Examples, *, seed: int
) -> ClassifierPredictor:
    """Fit one.

    Args:
        alternative: It.
        run: Plain fine-tuning at the given settings, which says model, length of a text, device
            and, by its steps, how long an encoder is trained.
        rows: Labelled rows of a classification.
        seed: Seed of the pairs and of the folds that choose the penalty.

    Returns:
        The classifier, as a checkpoint is asked.

    Raises:
        ModelError: The model cannot be loaded, or is no encoder.
    """
    names, length = label_names(rows), run.data.max_length
    # The head is fitted below, so the checkpoint's is not read.
    classifier, tokenizer = load_classifier(
        run.model, labels=names, device=run.train.device, new_head=True
    )
    if getattr(classifier.config, "is_encoder_decoder", False) or not hasattr(
        classifier.config, "hidden_size"
    ):
        raise ModelError(f"{run.model} is no encoder, so it has no embeddings to classify.")
    if alternative.length:
        texts = alternative.length * passes_over_rows(run, len(rows)) * len(rows)
        steps = max(1, round(texts / (2 * PAIRS)))
        order = np.random.default_rng(seed).permutation(len(rows))[:PAIRED_ROWS]
        contrast(
            classifier.base_model,
            tokenizer,
            [rows.text[place] for place in order],
            [(rows.labels or ())[place] for place in order],
            max_length=length,
            steps=steps,
            seed=seed,
        )
    with seeded(seed):
        network = FrozenClassifier(classifier, classes=len(names)).to(classifier.device)
    predictor = ClassifierPredictor(network, tokenizer, max_length=length)
    indices: list[int] = []
    found = []
    with in_mode(network, training=False), torch.no_grad():
        for part in predictor.parts(rows, batch_size=BATCH):
            indices += part.indices
            found.append(network.embed(**part.batch.inputs))
    features = in_order(indices, found)
    labels = np.asarray(rows.labels, dtype=np.int64)
    parts = list(_parts(rows, seed))
    best = min(
        STRENGTHS,
        key=lambda strength: _held_out_loss(features, labels, parts, strength, len(names)),
    )
    weight, bias = logistic_regression(features, labels, classes=len(names), strength=best)
    with torch.no_grad():
        network.head.weight.copy_(torch.from_numpy(weight))
        network.head.bias.copy_(torch.from_numpy(bias))
    network.eval()
    return predictor


def logistic_regression(
    features: FloatArray,
    labels: IntegerArray,
    *,
    classes: int,
    strength: float,
    tolerance: float = 1e-8,
) -> tuple[FloatArray, FloatArray]:
    """Minimise ``C sum_i -log softmax(W x_i + b)[y_i] + ||W||^2 / 2`` by L-BFGS.

    Args:
        features: [n, D].
        labels: Class indices, [n].
        classes: How many there are.
        strength: C of scikit-learn's ``LogisticRegression``, > 0.
        tolerance: Largest entry of the mean loss's gradient at which it ends.

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
        options={"maxiter": 1000, "ftol": 1e-14, "gtol": tolerance},
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
            features[rest],
            labels[rest],
            classes=classes,
            strength=strength,
            tolerance=CHOICE_TOLERANCE,
        )
        logits = log_softmax(features[held] @ weight.T + bias, axis=1)
        total -= float(logits[np.arange(len(held)), labels[held]].sum())
    return total
