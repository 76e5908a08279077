"""Find wrong labels: rows whose label has a high loss under models that were not trained on it.

The rows are cut into folds. Two models are trained per fold, on all other folds, and predict the
rows of the fold: a fine-tuned one, after every epoch, and a linear one on frozen embeddings. A
row's score is the loss of its label under the mean of these predictions.

References:
    Chong, Hong and Manning, "Detecting Label Errors by Using Pre-trained Language Models", EMNLP
    2022 (arXiv 2205.12702): out-of-fold loss of a fine-tuned model.
    Differs: the mean over epochs, and with a linear model on frozen embeddings. The two models make
        different errors, so their mean is more precise than either one.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas

from temper.data.examples import Examples, Splits
from temper.data.splitting import check_folds, fold_of_rows
from temper.errors import DataError
from temper.evaluation.classifier import ClassifierPredictor
from temper.functional.resampling import FloatArray, IntegerArray
from temper.progress import Progress
from temper.seeding import derive_seed
from temper.study.alternatives import LinearModel, frozen_predictor
from temper.training.config import RunConfig
from temper.training.prepared import label_names, prepare
from temper.training.recorder import Listener
from temper.training.run import make_trainer


@dataclass(frozen=True)
class OutOfFold:
    """Predictions for each row by models that were not trained on it.

    Args:
        rows: The rows, with class names.
        fine_tuned: Mean probabilities of the fine-tuned models over the epochs, [n, C].
        linear: Probabilities of the linear models on frozen embeddings, [n, C].
    """

    rows: Examples
    fine_tuned: FloatArray
    linear: FloatArray

    @property
    def probabilities(self) -> FloatArray:
        """The mean of both probabilities, [n, C]."""
        return (self.fine_tuned + self.linear) / 2


def label_losses(probabilities: FloatArray, labels: IntegerArray) -> FloatArray:
    """Return ``-log p[label]`` of each row, [n], for probabilities [n, C]; finite even for p = 0.

    Example:
        >>> label_losses(np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([0, 1])).round(1).tolist()
        [0.7, 708.4]
    """
    given = probabilities[np.arange(len(labels)), labels]
    return -np.log(np.maximum(given, np.finfo(np.float64).tiny))


def rank_labels(rows: Examples, probabilities: FloatArray) -> pandas.DataFrame:
    """Return rows by the loss of their label, the highest first, for probabilities [n, C].

    Returns:
        ``row`` (its number in the file), ``text``, ``text_pair`` of pairs, ``label``, ``suggested``
        and ``score``, the loss.
    """
    names, labels = np.asarray(label_names(rows)), np.asarray(rows.labels, dtype=np.int64)
    table = pandas.DataFrame(
        {
            "row": list(rows.numbers),
            "text": list(rows.text),
            **({} if rows.text_pair is None else {"text_pair": list(rows.text_pair)}),
            "label": names[labels],
            "suggested": names[probabilities.argmax(axis=1)],
            "score": label_losses(probabilities, labels),
        }
    )
    return table.sort_values("score", ascending=False, kind="stable", ignore_index=True)


def out_of_fold(
    config: RunConfig,
    rows: Examples,
    *,
    embedder: str | None = None,
    folds: int = 5,
    progress: Progress | None = None,
) -> OutOfFold:
    """Predict each row by models that were trained on the other folds (>= 2) only.

    Equal texts are in one fold. The seed of ``config`` also draws the folds. ``embedder`` is the
    encoder of the frozen embeddings; None uses the model.
    """
    progress = progress or Progress()
    if rows.kind != "classification" or rows.labels is None:
        raise DataError(
            f"{rows.origin} has no classes, and only class labels are checked. Name another label "
            "column, or set data.kind=classification."
        )
    check_folds(rows)
    names = tuple(label_names(rows))
    rows = replace(rows, label_names=names)
    of_row = np.asarray(fold_of_rows(rows, folds, seed=config.seed))
    # First, so that an unsuitable encoder fails at once.
    encoder = config.model_copy(update={"model": embedder or config.model})
    linear = LinearModel.choose(frozen_predictor(encoder, names), rows, of_row)
    fine_tuned = np.zeros((len(rows), len(names)))
    # A checkpoint's head may have different classes or be for another task.
    train = config.train.model_copy(update={"new_head": True})
    present = np.unique(of_row)
    for number, fold in enumerate(present, start=1):
        held_out = np.flatnonzero(of_row == fold)
        progress.runs(number, len(present), f"fold {number}")
        run_seed = derive_seed(config.seed, "fold", number) % 2**32
        run = config.model_copy(update={"seed": run_seed, "train": train})
        fine_tuned[held_out] = held_out_probabilities(
            run, rows.select(np.flatnonzero(of_row != fold)), rows.select(held_out), progress
        ).mean(axis=0)
    return OutOfFold(rows, fine_tuned, np.exp(linear.logs))


def held_out_probabilities(
    config: RunConfig, train: Examples, held: Examples, progress: Progress
) -> FloatArray:
    """Train on some rows; return the probabilities of the others after each epoch, [E, n, C]."""
    # Nothing is written: no run's folder, and the trainer's own is temporary.
    prepared = prepare(config, Splits(train, held))
    progress.notice_all(prepared.notices)
    predictor = ClassifierPredictor(
        prepared.model, prepared.tokenizer, max_length=config.data.max_length
    )
    epochs = _Epochs(predictor, held, progress)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(
            prepared, config, folder, [epochs], save_strategy="no", report_to="none"
        )
        trainer.train()
    return np.stack(epochs.probabilities)


class _Epochs(Listener):
    def __init__(self, predictor: ClassifierPredictor, held: Examples, progress: Progress) -> None:
        self.predictor, self.held, self.progress = predictor, held, progress
        self.probabilities: list[FloatArray] = []

    def on_step_end(self, args: object, state: Any, control: object, **_: object) -> None:
        self.progress.steps(state.global_step, state.max_steps, loss=None)

    def on_epoch_end(self, args: object, state: object, control: object, **_: object) -> None:
        self.probabilities.append(self.predictor.predict(self.held).probabilities)
