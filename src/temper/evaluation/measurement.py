"""The input of perspectives: settings, predictor, aligned data, cached clean predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from temper.data.examples import Examples
from temper.evaluation.alignment import merge
from temper.evaluation.blocks import block_of
from temper.evaluation.common_settings import CommonSettings
from temper.evaluation.folder import Texts
from temper.evaluation.prediction import Prediction, joined
from temper.evaluation.predictor import (
    PerturbablePredictor,
    Predictor,
    RowBatch,
    Session,
    StatePredictor,
    predictions_of,
)
from temper.evaluation.rows import Block, Condition
from temper.functional.resampling import IntegerArray
from temper.seeding import derive_seed

if TYPE_CHECKING:
    from torch import Tensor

ERRORS_KEPT = 100
"""Maximum number of misclassified texts that are kept per set."""

Progress = Callable[[int, int, str], None]
"""Progress callback: number of finished parts, number of parts, name of the measurement."""


@dataclass(frozen=True)
class EvaluationData:
    """The data of an evaluation.

    Args:
        dev: Labeled validation rows of the training task.
        shift: Labeled sets from other sources, by name.
        anomaly: Out-of-distribution sets, by name; labels are ignored.
        metric: The task's primary metric: ``accuracy``, ``macro_f1``, ``mcc`` or ``f1``, or for a
            regression ``pearson``, ``spearman`` or ``mse``.
        adversarial: Labeled sets that were made to mislead models, by name.
        fit: In-distribution rows to fit OOD detectors on, ideally training rows, with or without
            labels; None if there are none.
        held_out: Labeled rows, neither trained on nor scored, to fit a temperature on. None
            cross-fits it on the validation rows.
        reference: The pre-trained model to compare hidden states with; None if unknown.
    """

    dev: Examples
    shift: Mapping[str, Examples] = field(default_factory=dict)
    anomaly: Mapping[str, Examples] = field(default_factory=dict)
    metric: str = "accuracy"
    adversarial: Mapping[str, Examples] = field(default_factory=dict)
    fit: Examples | None = None
    held_out: Examples | None = None
    reference: StatePredictor | None = None

    @property
    def labeled(self) -> dict[str, Examples]:
        return {"dev": self.dev, **self.shift, **self.adversarial}

    @property
    def sets(self) -> dict[str, Examples]:
        return {**self.labeled, **self.anomaly}


@dataclass(frozen=True, kw_only=True)
class Measurement(EvaluationData):
    """A running evaluation: the input of perspectives, and where they add notices and texts.

    The sets are aligned with the predictor's labels.

    Args:
        entailment: Set with two NLI labels -> index of the predictor's class entailment.
        thresholds: Probability above which each label, or class 1 of two, is predicted, [L]; None
            for 0.5.
        truncated: Set -> fraction of truncated rows; filled in during the evaluation.
    """

    predictor: Predictor
    settings: CommonSettings
    progress: Progress | None = None
    entailment: Mapping[str, int] = field(default_factory=dict)
    thresholds: tuple[float, ...] | None = None
    truncated: dict[str, float] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    texts: Texts = field(default_factory=Texts)
    _clean: dict[str, Prediction] = field(default_factory=dict)

    @property
    def regression(self) -> bool:
        """Whether the predictor returns values instead of classes."""
        return self.predictor.gives == "values"

    @property
    def perturbable(self) -> PerturbablePredictor:
        """The predictor, for perspectives that need embeddings (`Perspective.needs`)."""
        predictor = self.predictor
        assert isinstance(predictor, PerturbablePredictor)
        return predictor

    def report(self, done: int, total: int, what: str) -> None:
        if self.progress is not None:
            self.progress(done, total, what)

    def teller(self, what: str) -> Callable[[int, int], None]:
        """Return a callback that reports the finished and the total number of parts."""
        return lambda done, total: self.report(done, total, what)

    def predict(self, examples: Examples) -> Prediction:
        """Predict examples at the thresholds, without caching; see `clean` for unchanged sets."""
        predictions = self.predictor.predict(examples, batch_size=self.settings.batch_size)
        return predictions.decided(self.thresholds)

    def parts(self, session: Session, examples: Examples, what: str) -> Iterator[RowBatch]:
        """Split examples into batches, and report progress after each."""
        done = 0
        for part in session.parts(examples, batch_size=self.settings.batch_size):
            yield part
            done += len(part.indices)
            self.report(done, len(examples), what)

    def clean(self, name: str, examples: Examples) -> Prediction:
        """Predict an unchanged set; the result is cached by its name."""
        if name not in self._clean:
            self.keep(name, self.predict(examples))
        return self._clean[name]

    def keep(self, name: str, prediction: Prediction) -> None:
        """Cache the clean predictions of a set, unless it has some."""
        self._clean.setdefault(name, prediction.decided(self.thresholds))
        if prediction.truncated is not None:
            self.truncated[name] = prediction.truncated

    def forget(self) -> None:
        """Free the cached clean predictions."""
        self._clean.clear()

    def predictions(self, part: RowBatch, logits: Tensor) -> Prediction:
        """Return the predictions of a batch from a session's logits; thresholds are not applied."""
        return predictions_of(
            logits, gives=self.predictor.gives, batch=part.batch, items=part.items
        )

    def joined(self, indices: Sequence[int], predictions: Sequence[Prediction]) -> Prediction:
        """Join the predictions of batches in order, and decide at the thresholds."""
        return joined(indices, predictions).decided(self.thresholds)

    def attacked(self, *, at_most: int | None = None) -> tuple[Examples, IntegerArray]:
        """Return the validation rows to perturb, and their positions.

        At most ``at_most`` and the setting ``attack_rows`` are chosen by hash; a smaller limit
        chooses a subset.
        """
        limits = (self.settings.attack_rows, at_most)
        limit = min((limit for limit in limits if limit is not None), default=len(self.dev))
        if limit >= len(self.dev):
            return self.dev, np.arange(len(self.dev))
        seed = self.settings.seed
        order = sorted(
            range(len(self.dev)),
            key=lambda index: (derive_seed(seed, "attacked", self.dev.rows[index]), index),
        )
        chosen = sorted(order[:limit])
        return self.dev.select(chosen), np.asarray(chosen, dtype=np.int64)

    def clean_block(
        self, perspective: str, name: str, examples: Examples, *, labeled: bool = True
    ) -> Block:
        prediction = self.clean(name, examples)
        if name in self.entailment:
            prediction = merge(prediction, self.entailment[name], how=self.settings.merge)
        block = block_of(Condition(perspective, name), examples, prediction, labeled=labeled)
        self.keep_errors(block, examples)
        return block

    def keep_errors(
        self, block: Block, examples: Examples, *, unperturbed: Block | None = None
    ) -> None:
        """Store the misclassified texts with the highest loss for the error analysis.

        Given the predictions on the ``unperturbed`` texts, only those that are right are stored.
        """
        if self.regression:
            return
        # NaN, a missing label, differs from every prediction.
        is_wrong = (block.prediction != block.label) & ~np.isnan(block.label)
        if unperturbed is not None:
            is_wrong &= unperturbed.prediction == unperturbed.label
        wrong = np.flatnonzero(is_wrong)
        worst = np.sort(wrong[np.argsort(-block.loss[wrong], kind="stable")[:ERRORS_KEPT]])
        original = examples.select(worst.tolist())
        self.texts.keep(block.condition.set, original, block.index[worst])
