"""Choose how to fine-tune a model on a dataset, on rows that no candidate was trained on.

Successive halving (Jamieson & Talwalkar 2016): every candidate is trained on a first fold of the
rows, and the better half of them on each further fold, until the time is used up. With few rows,
all candidates are trained on up to three folds first. The lowest Brier score after temperature
scaling wins.

Most candidates start from a linear classifier on the encoder's frozen embeddings: a head that fits
the features distorts them less than a random one (LP-FT, Kumar et al. 2022, arXiv 2202.10054). The
linear classifier itself and SetFit (Tunstall et al. 2022, arXiv 2209.11055) are candidates too.
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
from numpy.typing import NDArray

from temper.checkpoints.folder import read_json
from temper.data.examples import Examples, Splits
from temper.data.splitting import check_folds, fold_of_rows
from temper.errors import NonFiniteError
from temper.files import write_json
from temper.functional.calibration import (
    brier_of_rows,
    fit_temperature,
    log_probabilities,
    scaled,
)
from temper.functional.resampling import FloatArray, IntegerArray
from temper.methods.registry import DEFAULT as DEFAULT_METHOD
from temper.models.folders import save_model
from temper.progress import Progress
from temper.settings import Tree
from temper.study.alternatives import (
    FROZEN,
    SETFIT,
    Alternative,
    LinearModel,
    alternatives,
    embeddings,
    fit_alternative,
    frozen_predictor,
)
from temper.study.wrong_labels import held_out_probabilities
from temper.training.config import RunConfig
from temper.training.cost import PLAIN
from temper.training.prepared import label_names
from temper.training.run import train
from temper.training.settings import TrainSettings

PARTS: Final = 5
FOLDS: Final = 3
"""Folds of the rows, and folds that candidates are compared on (up to 5 with few rows)."""
ENOUGH: Final = 80
"""Minimum held-out rows that a candidate predicts before it may be dropped."""
ROWS: Final = 1000
"""Maximum rows that candidates are trained and compared on."""
UNCHANGED: Final = 1e-12
"""Learning rate of a run of one step that only saves the initial classifier as a run.

It is too small to change the weights.
"""


@dataclass(frozen=True)
class Candidate:
    """Settings to train a classifier with.

    Args:
        rate: Factor on the model's default learning rate; 0 uses the classifier of ``start``
            without fine-tuning.
        length: Factor on `epochs_for`; None uses the default number of epochs.
        start: The classifier that training starts from; None is a head with random weights.
        passes: Cost of a step in forward passes; plain fine-tuning costs 3.
    """

    name: str
    method: str = DEFAULT_METHOD
    rate: float = 1.0
    length: float | None = 1.0
    start: Alternative | None = FROZEN
    passes: float = PLAIN

    def changes(self, train: TrainSettings, rows: int) -> dict[str, Any]:
        """Return the changes of ``train``, the default settings, to train on ``rows`` rows."""
        if not self.rate:
            one_step = {"learning_rate": UNCHANGED, "max_steps": 1, "evaluate": "off"}
            return {**one_step, "new_head": False}
        rate, epochs = float(f"{self.rate * train.learning_rate:.3g}"), train.epochs
        if self.length is not None:
            epochs = max(1.0, float(round(self.length * epochs_for(rows))))
        return {"learning_rate": rate, "epochs": epochs, "new_head": self.start is None}


LINEAR: Final = Candidate("linear classifier", rate=0.0)
WITH_SETFIT: Final = Candidate("SetFit", rate=0.0, start=SETFIT)
DEFAULT: Final = Candidate("default fine-tuning", length=None, start=None)
"""Plain fine-tuning with the default settings."""
SIMPLE: Final = (LINEAR, WITH_SETFIT, DEFAULT)
"""Baselines that the best candidate is compared with."""
CANDIDATES: Final = (
    LINEAR,
    Candidate("fine-tuning"),
    DEFAULT,
    WITH_SETFIT,
    Candidate("fine-tuned SetFit", start=SETFIT),
    Candidate("fine-tuning, random head", start=None),
    Candidate("light fine-tuning", rate=0.2, length=0.2),
    Candidate("fine-tuning, high rate", rate=2.0),
    Candidate("fine-tuning, low rate", rate=0.3),
    Candidate("R-Drop", method="r_drop", passes=6.0),
    Candidate("long fine-tuning", rate=0.3, length=2.0),
)
"""All candidates; the most promising ones are first, because the time may run out."""


def epochs_for(rows: int) -> int:
    """Return the default number of epochs; small datasets get more.

    Example:
        >>> [epochs_for(rows) for rows in (200, 1000, 5000)]
        [10, 5, 3]
    """
    return min(10, max(3, round(5 * math.sqrt(1000 / rows))))


@dataclass(eq=False)
class Trial:
    """A candidate on a model, and its predictions on the folds.

    Args:
        logs: Log-probabilities of the held-out rows of each fold, [n, C].
        means: Mean probabilities of the same rows over the epochs.
    """

    model: str
    candidate: Candidate
    logs: list[FloatArray] = field(default_factory=list)
    means: list[FloatArray] = field(default_factory=list)


@dataclass
class Choice:
    """The result of the comparison of candidates.

    Args:
        rows: The rows that were cut into folds.
        folds: Indices of the held-out rows of each fold.
        trials: Every trial that was trained, the best first.
        linear: The linear classifier of each model.
        half: For each fold, log-probabilities of the best candidate trained on half of the rows;
            empty if there was no time.
        skipped: Number of candidates that were not trained, because the time was too short.
    """

    rows: Examples
    folds: list[IntegerArray]
    trials: list[Trial]
    linear: dict[str, LinearModel]
    half: list[FloatArray] = field(default_factory=list)
    skipped: int = 0

    def labels(self, folds: int) -> IntegerArray:
        """Return the classes of the held-out rows of the first folds."""
        return np.asarray(self.rows.labels, dtype=np.int64)[np.concatenate(self.folds[:folds])]

    def hits(self, logs: Sequence[FloatArray]) -> NDArray[np.bool_]:
        """Return whether the most probable class of each held-out row is right, [n]."""
        return np.asarray(np.concatenate(list(logs)).argmax(axis=1) == self.labels(len(logs)))

    def brier(self, logs: Sequence[FloatArray]) -> FloatArray:
        """Return the Brier score of each held-out row after temperature scaling, [n]."""
        labels, values = self.labels(len(logs)), np.concatenate(list(logs))
        return brier_of_rows(labels, np.exp(calibrated(labels, values)))


def calibrated(labels: IntegerArray, logs: FloatArray) -> FloatArray:
    """Return log-probabilities after temperature scaling, or unscaled if no temperature fits."""
    finite = np.maximum(logs, math.log(np.finfo(np.float64).tiny))
    try:
        return scaled(finite, fit_temperature(labels, finite).value)
    except ValueError:
        return finite


class Search:
    """Train candidates on folds. ``seconds`` is the limit of the search and the final training.

    ``base`` has the nested settings of all runs, without ``model``.
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
        check_folds(rows)
        self.base, self.all_rows, self.seconds, self.progress = base, rows, seconds, progress
        self.models = models
        self.seed = int(base.get("seed", 0))
        sample = rows.sample(min(ROWS, len(rows)), seed=self.seed)
        of_row = np.asarray(fold_of_rows(sample, PARTS, seed=self.seed))
        # Candidates are dropped after this many folds: a few dozen rows are too few to choose by.
        self.first = min(FOLDS, math.ceil(ENOUGH * PARTS / len(sample)))
        count = self.first + FOLDS - 1
        folds = [np.flatnonzero(of_row == fold) for fold in range(count)]
        self.begun = time.monotonic()
        # Cost and seconds of the most expensive training of each model.
        self.longest: dict[str, tuple[float, float]] = {}
        self.starts: dict[tuple[str, Alternative | None, bytes], Path] = {}
        linear: dict[str, LinearModel] = {}
        for model in models:
            progress.info(f"Embedding {len(sample):,} rows with {model}.")
            encoder = frozen_predictor(self.config(model, DEFAULT, 1), label_names(sample))
            linear[model] = LinearModel.choose(encoder, sample, of_row)
            # Until a training is measured, its time is estimated from the forward passes.
            self.longest[model] = float(len(sample)), linear[model].seconds
        self.choice = Choice(sample, folds, [], linear)

    def config(self, model: str, candidate: Candidate, rows: int, start: Path | None = None) -> Any:
        plain = RunConfig.of({**self.base, "model": model})
        train = {**self.base.get("train", {}), **candidate.changes(plain.train, rows)}
        changed = {"model": str(start or model), "method": {"name": candidate.method}}
        return RunConfig.of({**self.base, **changed, "train": train})

    def run(self) -> Choice:
        """Compare the candidates; an error of the first one is raised."""
        with tempfile.TemporaryDirectory() as folder:
            self.folder = Path(folder)
            self._compare()
            self._learning_curve()
        return self.choice

    def _compare(self) -> None:
        config = self.config(self.models[0], DEFAULT, 1)
        has_setfit = SETFIT in alternatives(config, self.choice.rows)
        ways = [
            candidate for candidate in CANDIDATES if candidate.start is not SETFIT or has_setfit
        ]
        alive = [Trial(model, way) for way in ways for model in self.models]
        for number, fold in enumerate(self.choice.folds, start=1):
            rest = self._rest(fold)
            if number > 1 and not self._time_for(alive[0], rest):
                break
            trained, planned, late = [], len(alive), 0
            for index, trial in enumerate(alive, start=1):
                if self.choice.trials and not self._time_for(trial, rest):
                    late += 1
                    continue
                self.progress.runs(index, len(alive), f"{trial.candidate.name}, fold {number}")
                try:
                    self._train(trial, rest, fold)
                except NonFiniteError as error:
                    self.progress.notice(f"Skipping {trial.candidate.name}: {error}")
                    continue
                trained.append(trial)
                if number == 1:
                    self.choice.trials.append(trial)
            if number == 1:
                self.choice.skipped = late
            if not trained:
                break
            trained.sort(key=self._score)
            skipped = f" {late} skipped to stay within the budget." if late else ""
            self.progress.info(
                f"Fold {number}: {len(trained)} of {planned} "
                f"candidates trained, best: {trained[0].candidate.name}.{skipped}"
            )
            kept = len(trained) if number < self.first else max(2, math.ceil(len(trained) / 2))
            alive = [
                *trained[:kept],
                *(item for item in trained[kept:] if item.candidate in SIMPLE),
            ]
        self.choice.trials.sort(key=lambda trial: (-len(trial.logs), self._score(trial)))

    def train_best(self, start: Path, out: Path, splits: Splits) -> None:
        """Train the best candidate on all rows; its initial classifier is written to ``start``."""
        best, rows = self.choice.trials[0], splits.train
        self.progress.info(
            f"Training {best.candidate.name} of {best.model} on all {len(rows):,} training rows."
        )
        self.progress.runs(1, 1, f"{best.candidate.name}, all rows")
        folder = None if best.candidate.start is None else start
        if folder is not None:
            self._write_start(best, rows, folder)
            config_file = folder / "config.json"
            # The model card names the model that the user gave, not this folder.
            write_json(config_file, {**read_json(config_file), "base_model": best.model})
        config = self.config(best.model, best.candidate, len(rows), folder)
        train(config, out, splits=splits, progress=self.progress)

    def _score(self, trial: Trial) -> float:
        return float(self.choice.brier(trial.logs).mean())

    def _cost(self, trial: Trial, rows: int, *, start: bool = True) -> float:
        """Return a training's cost in forward passes of a row; ``start`` adds initialization."""
        candidate = trial.candidate
        passes = 1.0
        if candidate.start is not None and start:
            passes += PLAIN * candidate.start.length * epochs_for(rows)
        if candidate.rate:
            passes += candidate.passes * self.config(trial.model, candidate, rows).train.epochs
        return rows * passes

    def _time_for(self, trial: Trial, train: IntegerArray, *, curve: bool = False) -> bool:
        """Return whether a training on ``train`` rows leaves time for the final one on all rows."""
        final = max(
            (trial, *self.choice.trials[:1]),
            key=lambda item: self._cost(item, len(self.all_rows)),
        )
        needed = self._cost(trial, len(train), start=self._key(trial, train) not in self.starts)
        needed += self._cost(final, len(self.all_rows))
        # The learning curve comes after the trials, which leave time for it.
        if not curve:
            needed += self._cost(final, len(train) // 2)
        left = self.seconds - (time.monotonic() - self.begun)
        cost, seconds = self.longest[trial.model]
        return needed * seconds / cost <= left

    def _train(self, trial: Trial, train: IntegerArray, held: IntegerArray) -> None:
        begun = time.monotonic()
        cost = self._cost(trial, len(train), start=self._key(trial, train) not in self.starts)
        probabilities = self._predicted(trial, train, held)
        if trial.candidate is not LINEAR:
            # A short training would measure the loading of the model.
            taken = cost, time.monotonic() - begun
            self.longest[trial.model] = max(taken, self.longest.get(trial.model, taken))
        trial.logs.append(log_probabilities(probabilities[-1]))
        trial.means.append(probabilities.mean(axis=0))

    def _predicted(self, trial: Trial, train: IntegerArray, held: IntegerArray) -> FloatArray:
        rows, key = self.choice.rows.select(train), self._key(trial, train)
        if trial.candidate.start is not None and key not in self.starts:
            folder = self.folder / str(len(self.starts))
            self._write_start(trial, rows, folder, train)
            self.starts[key] = folder
        config = self.config(trial.model, trial.candidate, len(rows), self.starts.get(key))
        return held_out_probabilities(config, rows, self.choice.rows.select(held), self.progress)

    def _key(self, trial: Trial, train: IntegerArray) -> tuple[str, Alternative | None, bytes]:
        return trial.model, trial.candidate.start, train.tobytes()

    def _write_start(
        self, trial: Trial, rows: Examples, folder: Path, index: IntegerArray | None = None
    ) -> None:
        if trial.candidate.start is FROZEN:
            linear = self.choice.linear[trial.model]
            if index is None and len(rows) > len(self.choice.rows):
                features = embeddings(linear.predictor, rows)
                labels = np.asarray(rows.labels, dtype=np.int64)
                linear = replace(linear, features=features, labels=labels)
            predictor: Any = linear.fit(index)
        else:
            plain = RunConfig.of({**self.base, "model": trial.model})
            epochs = plain.train.model_copy(update={"epochs": float(epochs_for(len(rows)))})
            run = plain.model_copy(update={"train": epochs})
            predictor = fit_alternative(SETFIT, run, rows, seed=self.seed)
        save_model(predictor.model, predictor.tokenizer, folder)

    def _learning_curve(self) -> None:
        """Train the best candidate on half of the rows of each fold that it was trained on."""
        best = self.choice.trials[0]
        for fold in self.choice.folds[: len(best.logs)]:
            rest = self._rest(fold)
            half = rest[self.choice.rows.select(rest).draw(len(rest) // 2, seed=self.seed)]
            if not self._time_for(best, half, curve=True):
                return
            self.progress.runs(1, 1, "half of the rows")
            self.choice.half.append(log_probabilities(self._predicted(best, half, fold)[-1]))

    def _rest(self, held: IntegerArray) -> IntegerArray:
        return np.setdiff1d(np.arange(len(self.choice.rows)), held)
