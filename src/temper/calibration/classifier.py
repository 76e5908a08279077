"""``temper predict`` as a Python object: predictions of a model with its calibration."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from temper.calibration.abstention import Abstention
from temper.calibration.calibration import FAILURE, Calibration, middle, outputs
from temper.calibration.estimating import unlabeled_scores
from temper.calibration.fields import WordsInText, fields_of, split_words
from temper.calibration.files import read_calibration
from temper.calibration.predictions import CalibratedPrediction, CalibratedPredictions, Shift
from temper.calibration.settings import Backend, known_backend
from temper.checkpoints.checkpoint import Checkpoint
from temper.data.choices import as_text
from temper.data.examples import Examples
from temper.data.in_memory import texts_of
from temper.errors import DataError, SettingError, percent_hint
from temper.evaluation.generator import TextGenerator
from temper.evaluation.lengths import cut_in, longest_row, windows_read
from temper.evaluation.loading import (
    load_generator,
    load_int8_predictor,
    load_predictor,
    unknown_in,
)
from temper.evaluation.prediction import Prediction, joined
from temper.evaluation.predictor import Predictor, StateReader
from temper.evaluation.request import check_pairs
from temper.evaluation.settings import PredictorSettings
from temper.functional.intervals import LEAST_ROWS
from temper.functional.label_names import placeholders
from temper.functional.resampling import FloatArray
from temper.functional.selective import AcceptanceThreshold
from temper.functional.shift import alarm_level, mmd_test
from temper.heads import Completions
from temper.models.hf import checkpoint_head
from temper.results import TrainingResult

ALARM = alarm_level(rate=0.01, references=0.95)
"""p value of the shift test up to which a batch counts as shifted; see `Shift.shifted`."""
LEAST_BATCH = 20
"""Minimum number of texts for a shift test."""
WINDOW = 4096
"""Maximum number of texts whose hidden states are in memory at a time."""
DRAWN = 200
"""Maximum number of texts in a shift test."""


@dataclass(frozen=True)
class Terms:
    """Checked options of a call, made by `Classifier.terms`: coverage and rules of abstention.

    ``selection`` is the confidence threshold for ``max_risk``; None without it.
    """

    coverage: float | None = None
    rules: Abstention = field(default_factory=Abstention)
    selection: AcceptanceThreshold | None = None


@dataclass(eq=False, repr=False)
class Classifier:
    """Predict texts as ``temper predict`` does; create it with `Classifier.load`.

    It is safe to share between threads: only one at a time uses the model, because the tokenizer
    and the hooks that read hidden states are stateful.

    Args:
        predictor: The model: a predictor, or a language model that continues prompts.
        name: Name of the model in messages.
        batch_size: Rows of a forward pass; None uses the predictor's default.
        calibration: The model's calibration; None leaves the probabilities unchanged.
        pairs: Whether the model was trained on pairs of texts; None accepts single texts and pairs.

    Example:
        >>> from temper.evaluation.function import CallablePredictor
        >>> sure = CallablePredictor(
        ...     lambda texts: [[0.25, 0.75]] * len(texts),
        ...     gives="probabilities",
        ...     label_names=["no", "yes"],
        ... )
        >>> prediction = Classifier(sure)(["a text"])[0]
        >>> prediction.label, prediction.anomaly
        ('yes', 0.25)
    """

    predictor: Predictor
    _: KW_ONLY
    name: str = "the model"
    batch_size: int | None = None
    calibration: Calibration | None = None
    pairs: bool | None = None
    _turn: threading.Lock = field(default_factory=threading.Lock, init=False)

    @classmethod
    def load(
        cls,
        model: str | Path | TrainingResult | Checkpoint,
        *,
        max_length: int | None = None,
        batch_size: int = 32,
        device: str | None = None,
        backend: Backend = "torch",
        settings: PredictorSettings | None = None,
    ) -> Self:
        """Load a model with its calibration, if it has one.

        Args:
            model: The folder of a run or another checkpoint, a Hub id, a ``.skops`` file,
                ``file.py:NAME`` of a function, or the result of `temper.train`.
            max_length: Maximum number of tokens of a text; None uses that of the training, else
                128.
            batch_size: Rows of a forward pass, >= 1; does not change the results.
            device: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``; None uses a GPU if there is
                one.
            backend: ``int8`` loads the 8-bit copy of ``temper calibrate --backend int8`` with its
                calibration, and runs on the CPU.
            settings: Further settings, such as the output type of a function.

        Raises:
            TemperError: The model cannot be loaded, or its calibration is damaged or was fitted
                for other weights.
        """
        checkpoint = Checkpoint.of(model.folder if isinstance(model, TrainingResult) else model)
        # First, because an error here takes milliseconds and loading the model takes seconds.
        calibration = read_calibration(checkpoint, known_backend(backend))
        known = settings or PredictorSettings()
        known = known.model_copy(update={"device": device or known.device})
        head = checkpoint_head(checkpoint.name) if checkpoint.kind == "weights" else None
        if head is not None and issubclass(head, Completions):
            if backend == "int8":
                raise SettingError(
                    f"{checkpoint} is a language model, and the backend int8 is for classifiers "
                    "and regressions. Leave it out."
                )
            generator = load_generator(
                checkpoint, head, max_length=max_length, batch_size=batch_size, settings=known
            )
            return cls(generator, name=checkpoint.name, batch_size=batch_size)
        predictor: Predictor
        if backend == "int8":
            predictor = load_int8_predictor(checkpoint, max_length=max_length, settings=known)
        else:
            predictor = load_predictor(
                checkpoint, max_length=max_length, batch_size=batch_size, settings=known
            )
        return cls(
            predictor,
            name=checkpoint.name,
            batch_size=batch_size,
            calibration=calibration,
            pairs=checkpoint.paired,
        )

    def __call__(
        self,
        texts: Sequence[str],
        text_pairs: Sequence[str] | Sequence[Sequence[str]] | None = None,
        *,
        coverage: float | None = None,
        abstain: str | None = None,
        max_risk: float | None = None,
    ) -> CalibratedPredictions:
        """Predict texts.

        Args:
            texts: The texts, a list or a column of a DataFrame; may be empty.
            text_pairs: The second texts of a pair task; for questions with choices, the choices of
                each question as a list or JSON.
            coverage: Probability that a prediction set or interval contains the truth, in (0, 1);
                None uses the first coverage of the calibration, if any.
            abstain: Comma-separated rules: ``anomaly`` abstains on texts flagged as anomalies,
                ``set>K`` on texts whose prediction set is empty or has more than K classes.
            max_risk: Maximum error rate of the accepted texts; abstains on less confident ones.
                Guaranteed by Learn-then-Test on the held-out rows, with probability 90%.

        Returns:
            One prediction per text, in the order of the texts.

        Raises:
            DataError: The input is not texts, the lists differ in length, or the model needs pairs
                and got single texts, or vice versa.
            SettingError: The calibration does not support an option.
            ModelError: A prediction is not finite.
        """
        texts = texts_of(texts)
        second_texts: Any = None if text_pairs is None else texts_of(text_pairs)
        if self.predictor.gives == "choices" and isinstance(second_texts, list):
            second_texts = [
                as_text(second) if isinstance(second, list) else second for second in second_texts
            ]
        for name, given in (("texts", texts), ("text_pairs", second_texts)):
            _check_texts(name, given, len(texts))
        check_pairs(self.name, self.pairs, second_texts is not None, rows="these texts")
        pairs = None if second_texts is None else list(second_texts)
        examples = Examples("texts", list(texts), pairs)
        return self.predict_examples(
            examples, self.terms(coverage=coverage, abstain=abstain, max_risk=max_risk)
        )

    def terms(
        self,
        *,
        coverage: float | None = None,
        abstain: str | None = None,
        max_risk: float | None = None,
    ) -> Terms:
        """Check the options of a call without predicting; see `__call__` for their meaning.

        Raises:
            SettingError: The calibration does not support an option.
        """
        rules, known, name = Abstention.of(abstain, max_risk), self.calibration, self.name
        if coverage is not None and not 0.0 < coverage < 1.0:
            came = f"{coverage:g}{percent_hint(coverage)}"
            raise SettingError(f"`coverage` must be a fraction in (0, 1), got {came}.")
        if known is None or known.detector is None:
            options = {"coverage": coverage, "abstain": abstain, "max_risk": max_risk}
            given = next((name for name, value in options.items() if value is not None), None)
            if given is None:
                return Terms()
            has = "has no calibration" if known is None else "has only a temperature"
            raise SettingError(
                f"`{given}` needs a calibration with thresholds, and {name} {has}. Calibrate it "
                f"on {2 * LEAST_ROWS} held-out rows or more: temper calibrate {name} --data ROWS"
            )
        if known.confidences is None and (rules.largest_set or rules.max_risk):
            raise SettingError(
                f"'set>K' and `max_risk` need one class per text, and {name} predicts numbers, "
                "several labels or tags of words. Leave them out."
            )
        if known.rule is None:
            if coverage is not None:
                raise SettingError(
                    f"`coverage` is for prediction sets, and {name} predicts tags of words, which "
                    "have none. Leave it out."
                )
            return Terms(rules=rules)
        coverage = known.rule.coverage[0] if coverage is None else coverage
        known.threshold(coverage)
        selection = None if rules.max_risk is None else known.confident(rules.max_risk)
        return Terms(coverage, rules, selection)

    def predict_examples(
        self, examples: Examples, terms: Terms | None = None, *, compare: bool = True
    ) -> CalibratedPredictions:
        """Predict the texts of a set; see `__call__`.

        ``compare``: whether to test all texts together for a shift from the held-out rows, and to
        estimate their accuracy. A service does this itself, over the texts of several requests.
        """
        terms = self.terms() if terms is None else terms
        if not len(examples):
            return CalibratedPredictions()
        if isinstance(self.predictor, TextGenerator):
            with self._turn:
                result = self.predictor.complete(examples)
            return CalibratedPredictions(
                tuple(CalibratedPrediction(completion=text) for text in result)
            )
        tagged = None
        if self.predictor.gives == "tags":
            examples, tagged = split_words(examples)
        with self._turn:
            predictions, anomaly, states = self._read(examples)
        described = self._described(predictions, anomaly, terms, examples, tagged)
        shift = self.shift(predictions, states) if compare else None
        scores = (
            unlabeled_scores(self.calibration, predictions, anomaly, shift) if compare else None
        )
        notices = described.notices
        if compare:
            notices += unknown_in(self.predictor, self.name, {"texts": examples})
        if len(examples) >= LEAST_BATCH:
            notices += tuple(str(item) for item in (shift, scores) if item is not None)
        return replace(
            described,
            notices=notices,
            shift=shift,
            scores=scores,
            uncalibrated=predictions,
            states=states,
        )

    def notices(self, terms: Terms) -> tuple[str, ...]:
        """Return notices on texts read differently than in calibration, and on ``max_risk``."""
        known, longest = self.calibration, longest_row(self.predictor)
        notices = []
        if known is not None and windows_read(self.predictor) != known.windows:
            notices.append(
                f"The calibration of {self.name} was fitted with other windows "
                "(`predictor.stride`, `predictor.pool`, `predictor.max_windows`). Calibrate again."
            )
        if known is not None and longest != known.max_length:
            notices.append(
                f"The texts that the calibration of {self.name} was fitted on were "
                f"{_cut(known.max_length)}, and these are {_cut(longest)}. Use the same "
                "--max-length, or calibrate again."
            )
        if (result := terms.selection) is not None:
            notices.append(
                f"Confidence threshold {result.threshold:.4g}: with probability {1 - FAILURE:.0%}, "
                f"at most {terms.rules.max_risk:.2%} of the predictions above it are wrong, if new "
                f"texts are like the {result.rows} held-out rows ({result.wrong} of "
                f"{result.accepted} above it are wrong). Other rules have no such guarantee."
            )
        return tuple(notices)

    def shift(self, uncalibrated: Prediction, states: FloatArray) -> Shift | None:
        """Test whether a batch of texts has shifted from the calibration's held-out rows.

        ``uncalibrated`` and ``states`` are those of `CalibratedPredictions`. Returns None for fewer
        than 20 texts, or without held-out rows.
        """
        known, count = self.calibration, len(uncalibrated)
        reference = None if known is None else known.compared
        if known is None or reference is None or count < LEAST_BATCH:
            return None
        # Few rows, because the test costs their square.
        indices = np.linspace(0, count - 1, min(count, DRAWN)).round().astype(np.int64)
        seen = outputs(uncalibrated) if known.reference is None else states
        p = mmd_test(reference, seen[indices], seed=0).p
        return Shift(p, p <= ALARM, len(indices))

    def names_of(self, predictions: Prediction) -> tuple[str, ...]:
        """Return the class names; ``LABEL_0``, ... if they have none, 0, 1, ... for choices."""
        count = predictions.probabilities.shape[1]
        if self.predictor.gives == "choices":
            return tuple(map(str, range(count)))
        return self.predictor.label_names or placeholders(count)

    def _described(
        self,
        uncalibrated: Prediction,
        anomaly: FloatArray | None,
        terms: Terms,
        examples: Examples,
        tagged: list[WordsInText] | None = None,
    ) -> CalibratedPredictions:
        """Calibrate predictions, and add prediction sets, anomaly flags and abstentions."""
        known, notices = self.calibration, self.notices(terms)
        notices += cut_in(self.predictor, uncalibrated.truncated, rows="texts")
        scaled = uncalibrated if known is None else known.applied(uncalibrated)
        names = self.names_of(scaled)
        second_texts = examples.text_pair or ()
        fields = fields_of(scaled, names, second_texts, tagged, gives=self.predictor.gives)
        if known is None or known.detector is None:
            return CalibratedPredictions(
                tuple(CalibratedPrediction(**record) for record in fields), notices
            )
        assert anomaly is not None
        in_sets = None
        flagged = anomaly > known.alarm
        for record, score, flag in zip(fields, anomaly.tolist(), flagged.tolist(), strict=True):
            record |= {"anomaly": score, "anomalous": flag}
        if terms.coverage is not None and scaled.regression:
            low, high = known.intervals(scaled.prediction, coverage=terms.coverage)
            for record, *ends in zip(fields, low.tolist(), high.tolist(), strict=True):
                record["interval"] = tuple(ends)
        elif terms.coverage is not None:
            in_sets = known.in_sets(scaled, coverage=terms.coverage)
            for record, row in zip(fields, in_sets.tolist(), strict=True):
                record["set"] = tuple(compress(names, row))
        abstained: dict[str, int] = {}
        if terms.rules:
            reasons = terms.rules.reasons(
                flagged=flagged,
                in_sets=in_sets,
                confidence=None if in_sets is None else scaled.probabilities.max(axis=1),
                needed=None if terms.selection is None else terms.selection.threshold,
            )
            for record, *objections in zip(fields, *reasons.values(), strict=True):
                record["abstain"] = ", ".join(filter(None, objections))
            abstained = {rule: sum(map(bool, objections)) for rule, objections in reasons.items()}
        return CalibratedPredictions(
            tuple(CalibratedPrediction(**record) for record in fields), notices, abstained=abstained
        )

    def _read(self, examples: Examples) -> tuple[Prediction, FloatArray | None, FloatArray]:
        """Return uncalibrated predictions, OOD scores [n], and states for the shift test [n, D]."""
        known = self.calibration
        parts, scores, states = [], [], []
        # The states of all layers are many numbers per row, so few rows' are in memory at a time.
        for start in range(0, len(examples), WINDOW):
            part = examples
            if len(examples) > WINDOW:
                part = examples.select(range(start, min(start + WINDOW, len(examples))))
            layers: NDArray[np.float32] = np.zeros((len(part), 1, 0), dtype=np.float32)
            if known is not None and known.wants_states:
                assert isinstance(self.predictor, StateReader)
                predictions, layers = self.predictor.predict_with_states(
                    part, batch_size=self.batch_size
                )
            else:
                predictions = self.predictor.predict(part, batch_size=self.batch_size)
            parts.append(predictions)
            states.append(middle(layers))
            if known is not None and known.detector is not None:
                scores.append(known.detector.score(predictions, known.applied(predictions), layers))
        whole = parts[0] if len(parts) == 1 else joined(range(len(examples)), parts)
        return whole, np.concatenate(scores) if scores else None, np.concatenate(states)


def _cut(length: int | None) -> str:
    return "not cut" if length is None else f"cut at {length} tokens"


def _check_texts(name: str, given: object, count: int) -> None:
    if given is None and name != "texts":
        return
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise DataError(f"`{name}` must be a list of texts, got {type(given).__name__}.")
    for index, text in enumerate(given):
        if not isinstance(text, str):
            raise DataError(
                f"`{name}` must be a list of texts, got {type(text).__name__} at index {index}."
            )
    if len(given) != count:
        raise DataError(
            f"`{name}` must have one entry per text, got {len(given)} for {count} texts."
        )
