"""Choose how to fine-tune a model on a dataset, on rows that no candidate was trained on.

Every candidate is trained on a first fold of the rows, and the better half of them on each further
one (successive halving, Jamieson & Talwalkar 2016), as long as the time lasts. The lowest Brier
score after temperature scaling wins.

Most candidates start from a linear classifier on the encoder's frozen embeddings: a head that fits
the features distorts them less than a random one (LP-FT, Kumar et al. 2022, arXiv 2202.10054).
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from temper.data.examples import Examples, Splits
from temper.data.splitting import fold_of_rows
from temper.errors import DataError, NonFiniteError
from temper.functional.calibration import (
    EveryRowRightError,
    brier_of_rows,
    fit_temperature,
    log_probabilities,
    scaled,
)
from temper.functional.resampling import FloatArray, IntegerArray
from temper.methods.registry import DEFAULT as DEFAULT_METHOD
from temper.progress import Progress
from temper.settings import Tree
from temper.study.alternatives import (
    choose_strength,
    embeddings,
    frozen_predictor,
    logistic_regression,
)
from temper.study.wrong_labels import held_out_probabilities
from temper.training.config import RunConfig
from temper.training.passes import PLAIN
from temper.training.prepared import label_names
from temper.training.run import train

PARTS: Final = 5
FOLDS: Final = 3
"""Parts of the rows, and how many of them candidates are compared on."""
ROWS: Final = 1000
"""Most rows that candidates are trained and compared on."""
LEAST_ROWS: Final = 50


@dataclass(frozen=True)
class Candidate:
    """A way to fine-tune.

    Args:
        name: Short name.
        method: Name of the method.
        rate: Factor of the default learning rate.
        length: Factor of `epochs_for`; None is the default number of epochs.
        from_embeddings: Whether training starts from a linear classifier on frozen embeddings, not
            from a head with random weights.
        passes: Forward-pass equivalents of a step; plain fine-tuning takes 3.
    """

    name: str
    method: str = DEFAULT_METHOD
    rate: float = 5.0
    length: float | None = 1.0
    from_embeddings: bool = True
    passes: float = PLAIN

    def settings(self, base: RunConfig, rows: int) -> dict[str, Any]:
        """Return the tables ``method`` and ``train`` of a training on a number of rows."""
        rate = float(f"{self.rate * base.train.learning_rate:.3g}")
        epochs = base.train.epochs
        if self.length is not None:
            epochs = max(1.0, float(round(self.length * epochs_for(rows))))
        return {
            "method": {"name": self.method},
            "train": {
                "learning_rate": rate,
                "epochs": epochs,
                "new_head": not self.from_embeddings,
            },
        }


DEFAULT: Final = Candidate("default", rate=1.0, length=None, from_embeddings=False)
"""Plain fine-tuning with the default settings: what others are compared with."""
CANDIDATES: Final = (
    Candidate("from embeddings"),
    DEFAULT,
    Candidate("from a new head", from_embeddings=False),
    Candidate("light", rate=1.0, length=0.2),
    Candidate("high rate", rate=10.0),
    Candidate("low rate", rate=2.0),
    Candidate("r_drop", method="r_drop", passes=6.0),
    Candidate("long", rate=2.0, length=2.0),
)
"""In the order in which they are tried, the most promising first: the time may end."""


def epochs_for(rows: int) -> int:
    """Return the usual number of epochs: few rows are read more often.

    Example:
        >>> [epochs_for(rows) for rows in (200, 1000, 5000)]
        [10, 5, 3]
    """
    return min(10, max(3, round(5 * math.sqrt(1000 / rows))))


@dataclass
class Trial:
    """A candidate on a model, and its predictions on the folds.

    Args:
        model: The model.
        candidate: The candidate.
        logs: Log-probabilities of the held-out rows of each fold, [n, C].
        means: Mean probabilities of the same rows over the epochs.
    """

    model: str
    candidate: Candidate
    logs: list[FloatArray] = field(default_factory=list)
    means: list[FloatArray] = field(default_factory=list)


@dataclass
class LinearModel:
    """A linear classifier on the frozen embeddings of an encoder.

    Args:
        model: The encoder.
        predictor: The encoder with a linear layer.
        features: Embeddings of the rows, [n, D].
        labels: Class indices, [n].
        strength: C of the regression, chosen on the folds.
        logs: Log-probabilities of each row by a model that was not fitted on it, [n, C].
    """

    model: str
    predictor: Any
    features: FloatArray
    labels: IntegerArray
    strength: float
    logs: FloatArray

    @classmethod
    def fit(cls, config: RunConfig, rows: Examples, of_row: IntegerArray) -> LinearModel:
        """Fit it on folds of the rows.

        Raises:
            ModelError: The model cannot be loaded, or is not an encoder.
        """
        names = label_names(rows)
        predictor = frozen_predictor(
            config.model,
            classes=names,
            max_length=config.data.max_length,
            device=config.train.device,
        )
        features, labels = embeddings(predictor, rows), np.asarray(rows.labels, dtype=np.int64)
        strength, logs = choose_strength(features, labels, of_row, classes=len(names))
        return cls(config.model, predictor, features, labels, strength, logs)

    def write(self, folder: Path, index: IntegerArray | None = None) -> None:
        """Write a checkpoint of the classifier.

        Args:
            folder: The folder.
            index: The rows to fit on; None is all.
        """
        chosen = slice(None) if index is None else index
        weight, bias = logistic_regression(
            self.features[chosen],
            self.labels[chosen],
            classes=self.logs.shape[1],
            strength=self.strength,
        )
        self.predictor.model.set_head(weight, bias)
        self.predictor.model.save_pretrained(folder)
        self.predictor.tokenizer.save_pretrained(folder)


@dataclass
class Choice:
    """The result of comparing candidates.

    Args:
        rows: The rows that were cut into folds.
        folds: Indices of the held-out rows of each fold.
        trials: Every trial that was trained, the best first.
        linear: The linear classifier of each model.
        half: Log-probabilities of the first trial's model after training on half of the rows, fold
            by fold; empty if the time did not last.
    """

    rows: Examples
    folds: list[IntegerArray]
    trials: list[Trial]
    linear: dict[str, LinearModel]
    half: list[FloatArray] = field(default_factory=list)

    def labels(self, folds: int) -> IntegerArray:
        """Return the classes of the held-out rows of the first folds."""
        index = np.concatenate(self.folds[:folds])
        return np.asarray(self.rows.labels, dtype=np.int64)[index]

    def brier(self, logs: Sequence[FloatArray]) -> FloatArray:
        """Return the Brier score of each held-out row after temperature scaling, [n]."""
        labels, values = self.labels(len(logs)), np.concatenate(list(logs))
        return brier_of_rows(labels, np.exp(calibrated(labels, values)))

    def linear_logs(self, model: str, folds: int) -> list[FloatArray]:
        """Return the log-probabilities of the first folds by the linear classifier of a model."""
        return [self.linear[model].logs[index] for index in self.folds[:folds]]


def calibrated(labels: IntegerArray, logs: FloatArray) -> FloatArray:
    """Return log-probabilities after temperature scaling, or as they are if no temperature fits."""
    finite = np.maximum(logs, math.log(np.finfo(np.float64).tiny))
    try:
        return scaled(finite, fit_temperature(labels, finite).value)
    except (EveryRowRightError, ValueError):
        return finite


class Search:
    """Train candidates on folds within a time limit.

    Args:
        base: Nested settings of all runs, without ``model``.
        rows: The training rows.
        models: Models to choose from.
        seconds: Time for the search and for the training on all rows.
        progress: Receives steps and notices.

    Raises:
        DataError: There are too few rows.
    """

    def __init__(
        self,
        base: Tree,
        rows: Examples,
        *,
        models: Sequence[str],
        seconds: float,
        progress: Progress,
    ) -> None:
        if len(rows) < LEAST_ROWS:
            raise DataError(
                f"{rows.origin} has {len(rows)} training rows, too few to compare candidates on "
                f"folds of them. Give at least {LEAST_ROWS}."
            )
        self.base, self.all_rows, self.seconds, self.progress = base, rows, seconds, progress
        self.models = models
        self.seed = int(base.get("seed", 0))
        sample = rows.sample(min(ROWS, len(rows)), seed=self.seed)
        of_row = np.asarray(fold_of_rows(sample, PARTS, seed=self.seed))
        folds = [np.flatnonzero(of_row == fold) for fold in range(FOLDS)]
        self.begun, self.speed = time.monotonic(), dict[str, float]()
        linear = {}
        for model in models:
            progress.info(f"Embedding {len(sample):,} rows with {model}.")
            linear[model] = LinearModel.fit(self.config(model, DEFAULT, 1), sample, of_row)
        self.choice = Choice(sample, folds, [], linear)

    def config(self, model: str, candidate: Candidate, rows: int, start: Path | None = None) -> Any:
        """Return the settings of a training."""
        plain = RunConfig.of({**self.base, "model": model})
        tables = candidate.settings(plain, rows)
        tree = {**self.base, "model": model if start is None else str(start)}
        tree["train"] = {**tree.get("train", {}), **tables["train"]}
        return RunConfig.of({**tree, "method": tables["method"]})

    def run(self) -> Choice:
        """Compare the candidates.

        Raises:
            TemperError: The first candidate could not be trained.
        """
        alive = [Trial(model, each) for each in CANDIDATES for model in self.models]
        for number, fold in enumerate(self.choice.folds):
            trained = []
            for place, trial in enumerate(alive, start=1):
                if self.choice.trials and not self._time_for(trial):
                    continue
                self.progress.runs(place, len(alive), f"{trial.candidate.name}, fold {number + 1}")
                try:
                    self._train(trial, fold)
                except NonFiniteError as error:
                    self.progress.notice(f"Skipping {trial.candidate.name}: {error}")
                    continue
                trained.append(trial)
                if number == 0:
                    self.choice.trials.append(trial)
            # The best had more folds than those that had to stop.
            if not trained:
                break
            trained.sort(key=self._score)
            kept = trained[: max(2, math.ceil(len(trained) / 2))]
            alive = [
                *kept,
                *(each for each in trained if each.candidate is DEFAULT and each not in kept),
            ]
            self.progress.notice(
                f"Fold {number + 1} of {FOLDS}: {len(trained)} of {len(CANDIDATES)} candidates "
                f"trained, best: {trained[0].candidate.name}."
            )
        self.choice.trials.sort(key=lambda trial: (-len(trial.logs), self._score(trial)))
        self._learning_curve()
        return self.choice

    def train_best(self, start: Path, out: Path, splits: Splits) -> None:
        """Train the best candidate on all training rows.

        Args:
            start: Folder for the linear classifier that training starts from, if it does.
            out: The run's folder.
            splits: The rows.
        """
        best, rows = self.choice.trials[0], splits.train
        self.progress.notice(
            f"Training {best.candidate.name} of {best.model} on all {len(rows):,} training rows."
        )
        if best.candidate.from_embeddings:
            linear = self.choice.linear[best.model]
            if len(rows) > len(self.choice.rows):
                features = embeddings(linear.predictor, rows)
                labels = np.asarray(rows.labels, dtype=np.int64)
                linear = replace(linear, features=features, labels=labels)
            linear.write(start)
        folder = start if best.candidate.from_embeddings else None
        config = self.config(best.model, best.candidate, len(rows), folder)
        train(config, out, splits=splits, progress=self.progress)

    def _score(self, trial: Trial) -> float:
        return float(self.choice.brier(trial.logs).mean())

    def _cost(self, trial: Trial, rows: int) -> float:
        """Return the forward-pass equivalents of a training, in rows."""
        epochs = self.config(trial.model, trial.candidate, rows).train.epochs
        return float(rows * epochs * trial.candidate.passes)

    def _time_for(self, trial: Trial, part: float = 1.0) -> bool:
        """Return whether a further training on a fold leaves time for the one on all rows."""
        if trial.model not in self.speed:
            return time.monotonic() - self.begun < self.seconds / 2
        rows = round(part * len(self.choice.rows) * (1 - 1 / PARTS))
        needed = self._cost(trial, rows) + max(
            self._cost(each, len(self.all_rows)) for each in (trial, *self.choice.trials[:1])
        )
        left = self.seconds - (time.monotonic() - self.begun)
        return needed * self.speed[trial.model] <= left

    def _train(self, trial: Trial, held: IntegerArray) -> None:
        rest = np.setdiff1d(np.arange(len(self.choice.rows)), held)
        begun = time.monotonic()
        probabilities = self._predicted(trial, rest, held)
        cost = self._cost(trial, len(rest))
        self.speed[trial.model] = (time.monotonic() - begun) / cost
        trial.logs.append(log_probabilities(probabilities[-1]))
        trial.means.append(probabilities.mean(axis=0))

    def _predicted(self, trial: Trial, rest: IntegerArray, held: IntegerArray) -> FloatArray:
        """Train on some rows and return the probabilities of others after each epoch."""
        rows = self.choice.rows
        with tempfile.TemporaryDirectory() as folder:
            start = None
            if trial.candidate.from_embeddings:
                start = Path(folder)
                self.choice.linear[trial.model].write(start, rest)
            config = self.config(trial.model, trial.candidate, len(rest), start)
            return held_out_probabilities(
                config, rows.select(rest), rows.select(held), self.progress
            )

    def _learning_curve(self) -> None:
        """Train the best candidate on half of the rows of each fold that it was trained on."""
        best = self.choice.trials[0]
        for held in self.choice.folds[: len(best.logs)]:
            if not self._time_for(best, part=0.5):
                return
            rest = np.setdiff1d(np.arange(len(self.choice.rows)), held)
            drawn = self.choice.rows.select(rest).draw(len(rest) // 2, seed=self.seed)
            self.progress.runs(1, 1, "half of the rows")
            self.choice.half.append(log_probabilities(self._predicted(best, rest[drawn], held)[-1]))
