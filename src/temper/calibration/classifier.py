"""Predict texts with a calibrated model: ``temper predict`` as a Python object."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from temper.calibration.abstention import Abstention
from temper.calibration.answers import Answer, Answers, Shift
from temper.calibration.calibration import FAILURE, Calibration, middle, outputs
from temper.calibration.estimating import unlabeled_scores
from temper.calibration.files import read_calibration
from temper.calibration.picking import picked_choices, picked_spans
from temper.calibration.settings import Backend, known_backend
from temper.calibration.tagging import WordsInText, split_words, tags_of
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
from temper.functional.label_names import placeholders
from temper.functional.resampling import FloatArray
from temper.functional.selective import Selection
from temper.functional.shift import alarm_level, mmd_test
from temper.heads import Completions
from temper.models.headed import checkpoint_head
from temper.results import TrainingResult

ALARM = alarm_level(rate=0.01, references=0.95)
"""A batch has shifted if its p value is not above this.

For 19 in 20 sets of held-out rows, at most one in a hundred batches without a shift alarms.
"""
LEAST_BATCH = 20
"""Texts of a batch from which on it is compared with held-out rows."""
WINDOW = 4096
"""Texts that are answered at a time."""
DRAWN = 200
"""Texts of it that are, at most."""


@dataclass(frozen=True)
class Terms:
    """The requested parts of an answer; `Classifier.terms` checks them."""

    coverage: float | None = None
    rules: Abstention = field(default_factory=Abstention)
    selection: Selection | None = None


class Classifier:
    """Answer texts as ``temper predict`` does; make one with `Classifier.load`.

    Threads may share one: they take turns at the model, since its tokenizer and the hooks that
    read its hidden states keep state through a call. torch computes one forward on several cores.

    Args:
        predictor: The model: a predictor, or a language model that continues prompts.
        name: Name for messages.
        batch_size: Rows of a forward pass; None takes the predictor's own.
        calibration: Its calibration; None does not change the probabilities.
        pairs: Whether it was trained on pairs of texts; None takes single texts and pairs.

    Example:
        >>> from temper.evaluation.function import CallablePredictor
        >>> sure = CallablePredictor(
        ...     lambda texts: [[0.25, 0.75]] * len(texts),
        ...     gives="probabilities",
        ...     label_names=["no", "yes"],
        ... )
        >>> answer = Classifier(sure)(["a text"])[0]
        >>> answer.label, answer.anomaly
        ('yes', 0.25)
    """

    def __init__(
        self,
        predictor: Predictor,
        *,
        name: str = "the model",
        batch_size: int | None = None,
        calibration: Calibration | None = None,
        pairs: bool | None = None,
    ) -> None:
        self.predictor = predictor
        self.name = name
        self.batch_size = batch_size
        self.calibration = calibration
        self.pairs = pairs
        self._turn = threading.Lock()

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
        """Load a model and the calibration that its folder keeps.

        Args:
            model: As ``temper predict`` takes it: the folder of a run or another checkpoint, a Hub
                id, a ``.skops`` file, or ``file.py:NAME`` of a function. Or what `temper.train`
                returned.
            max_length: Tokens a text is cut to; None takes what the run was trained with, else 128.
            batch_size: Rows of a forward pass, >= 1; changes no result.
            device: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``; None uses a GPU if there is
                one.
            backend: ``int8`` takes the 8-bit copy that ``temper calibrate --backend int8`` has
                made, with the calibration that was fitted on its answers; it runs on the CPU.
            settings: Settings of a function or an estimator, which do not define them.

        Raises:
            TemperError: It cannot be loaded, or its calibration is damaged or that of other
                weights.
        """
        checkpoint = Checkpoint.of(model.folder if isinstance(model, TrainingResult) else model)
        # First, since it is refused in milliseconds.
        calibration = read_calibration(checkpoint, known_backend(backend))
        known = settings or PredictorSettings()
        head = checkpoint_head(checkpoint.name) if checkpoint.kind == "weights" else None
        if head is not None and issubclass(head, Completions):
            if backend == "int8":
                raise SettingError(
                    f"{checkpoint} is a language model, and the backend int8 is of classifiers and "
                    "regressions. Leave it out."
                )
            known = known.model_copy(update={"device": device or known.device})
            generator = load_generator(
                checkpoint, head, max_length=max_length, batch_size=batch_size, settings=known
            )
            return cls(generator, name=checkpoint.name, batch_size=batch_size)
        predictor: Predictor
        if backend == "int8":
            predictor = load_int8_predictor(
                checkpoint, max_length=max_length, device=device, settings=settings
            )
        else:
            predictor = load_predictor(
                checkpoint,
                max_length=max_length,
                batch_size=batch_size,
                device=device,
                settings=settings,
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
    ) -> Answers:
        """Answer texts.

        Args:
            texts: The texts, a list or a column of a DataFrame; may be empty.
            text_pairs: The second text of each, for a task of pairs; for a model of choices these
                choices, a list or JSON.
            coverage: How often prediction sets, or intervals, shall hold the truth, in (0, 1); None
                takes the first one that was calibrated, if any.
            abstain: Rules with commas between: ``anomaly`` abstains from texts that are flagged,
                ``set>K`` from those whose set is empty or larger than K.
            max_risk: Abstain from texts below the confidence from which on answers are wrong at
                this rate at most, shown on the held-out rows by Learn-then-Test.

        Returns:
            One answer a text, in their order.

        Raises:
            DataError: They are not texts, not as many second ones as first ones, or
                pairs where the model was trained on single texts, or the other way round.
            SettingError: Something is asked for that the calibration cannot say.
            ModelError: An answer is not finite.
        """
        texts = texts_of(texts)
        seconds: Any = None if text_pairs is None else texts_of(text_pairs)
        if self.predictor.gives == "choices" and isinstance(seconds, list):
            seconds = [as_text(each) if isinstance(each, list) else each for each in seconds]
        for name, given in (("texts", texts), ("text_pairs", seconds)):
            _check_texts(name, given, len(texts))
        check_pairs(self.name, self.pairs, seconds is not None, rows="these texts")
        pairs = None if seconds is None else list(seconds)
        examples = Examples("texts", list(texts), pairs)
        return self.answers(
            examples, self.terms(coverage=coverage, abstain=abstain, max_risk=max_risk)
        )

    def terms(
        self,
        *,
        coverage: float | None = None,
        abstain: str | None = None,
        max_risk: float | None = None,
    ) -> Terms:
        """Check the options of a call, before there is a text.

        Raises:
            SettingError: The calibration does not support an option.
        """
        rules, known, name = Abstention.of(abstain, max_risk), self.calibration, self.name
        if coverage is not None and not 0.0 < coverage < 1.0:
            came = f"{coverage:g}{percent_hint(coverage)}"
            raise SettingError(f"`coverage` must be a fraction in (0, 1), got {came}.")
        kept = known is not None and known.detector is not None
        for option, wanted in (("coverage", coverage is not None), ("abstain", bool(rules))):
            if wanted and not kept:
                has = "keeps only a temperature" if known is not None else "keeps no calibration"
                raise SettingError(
                    f"`{option}` needs held-out rows, and {name} {has}. Give "
                    f"it held-out rows first: temper calibrate {name} --data ROWS --coverage 0.9"
                )
        if known is None or known.detector is None:
            return Terms()
        if known.confidences is None and (rules.largest_set or rules.max_risk):
            raise SettingError(
                f"'set>K' and `max_risk` need one class per text, and {name} predicts numbers, "
                "several labels or tags of words."
            )
        if known.rule is None:
            if coverage is not None:
                raise SettingError(
                    f"`coverage` makes prediction sets, and {name} predicts tags of words, which "
                    "have none."
                )
            return Terms(rules=rules)
        coverage = known.rule.coverage[0] if coverage is None else coverage
        known.threshold(coverage)
        selection = None if rules.max_risk is None else known.confident(rules.max_risk)
        return Terms(coverage, rules, selection)

    def answers(
        self, examples: Examples, terms: Terms | None = None, *, compare: bool = True
    ) -> Answers:
        """Answer the texts of a set, with ``terms`` checked by `terms`.

        Unless ``compare``, the texts as a whole are not compared with held-out rows: a service does
        that itself, over the texts of several requests.
        """
        terms = self.terms() if terms is None else terms
        if not len(examples):
            return Answers()
        if isinstance(self.predictor, TextGenerator):
            with self._turn:
                result = self.predictor.complete(examples)
            return Answers(tuple(Answer(completion=text) for text in result))
        tagged = None
        if self.predictor.gives == "tags":
            examples, tagged = split_words(examples)
        with self._turn:
            predictions, anomaly, states = self._read(examples)
        made = self._described(predictions, anomaly, terms, examples, tagged)
        shift = self.shift(predictions, states) if compare else None
        scores = (
            unlabeled_scores(self.calibration, predictions, anomaly, shift) if compare else None
        )
        notices = made.notices
        if compare:
            notices += unknown_in(self.predictor, self.name, {"texts": examples})
        if len(examples) >= LEAST_BATCH:
            notices += tuple(str(each) for each in (shift, scores) if each is not None)
        return replace(
            made, notices=notices, shift=shift, scores=scores, own=predictions, states=states
        )

    def notices(self, terms: Terms) -> tuple[str, ...]:
        """Return notices about all answers: the length of texts, the required confidence."""
        known, longest = self.calibration, longest_row(self.predictor)
        notices = []
        if known is not None and windows_read(self.predictor) != known.windows:
            notices.append(
                f"The calibration of {self.name} was fitted on texts that the model read otherwise "
                "(`predictor.stride`, `predictor.pool`, `predictor.max_windows`). Calibrate again."
            )
        if known is not None and longest != known.max_length:
            notices.append(
                f"The calibration of {self.name} was fitted on texts cut at {known.max_length} "
                f"tokens, and these are cut at {longest}."
            )
        if (result := terms.selection) is not None:
            notices.append(
                f"Confidence threshold {result.threshold:.4g}: with probability {1 - FAILURE:.0%}, "
                f"at most {terms.rules.max_risk:.2%} of the predictions above it are wrong, if new "
                f"texts are like the {result.rows} held-out rows ({result.wrong} of "
                f"{result.accepted} above it are wrong). Other rules have no such guarantee."
            )
        return tuple(notices)

    def shift(self, own: Prediction, states: FloatArray) -> Shift | None:
        """Compare texts as a whole with held-out rows of the calibration.

        ``own`` and ``states`` are those of `Answers`. None for fewer than 20 texts, or if no
        held-out rows are kept.
        """
        known, count = self.calibration, len(own)
        reference = None if known is None else known.compared
        if known is None or reference is None or count < LEAST_BATCH:
            return None
        # Few rows, because the test costs their square.
        indices = np.linspace(0, count - 1, min(count, DRAWN)).round().astype(np.int64)
        seen = outputs(own) if known.reference is None else states
        p = mmd_test(reference, seen[indices], seed=0).p
        return Shift(p, p <= ALARM, len(indices))

    def names_of(self, answers: Prediction) -> tuple[str, ...]:
        """Return the names of classes: ``LABEL_0`` and so on if they have none, of choices 0, 1."""
        count = answers.probabilities.shape[1]
        if self.predictor.gives == "choices":
            return tuple(map(str, range(count)))
        return self.predictor.label_names or placeholders(count)

    def _described(
        self,
        own: Prediction,
        anomaly: FloatArray | None,
        terms: Terms,
        examples: Examples,
        tagged: list[WordsInText] | None = None,
    ) -> Answers:
        """Return the answers with sets, flags and abstentions, from the model's predictions."""
        known, notices = self.calibration, self.notices(terms)
        notices += cut_in(self.predictor, own.truncated, rows="texts")
        scaled = own if known is None else known.applied(own)
        names = self.names_of(scaled)
        second = examples.text_pair or ()
        if scaled.spans is not None:
            fields = picked_spans(scaled, second)
        elif tagged is not None:
            fields = tags_of(scaled, names, tagged)
        else:
            fields = _plain(scaled, names)
        if self.predictor.gives == "choices":
            fields = picked_choices(fields, scaled, second)
        if known is None or known.detector is None:
            return Answers(tuple(Answer(**each) for each in fields), notices)
        assert anomaly is not None
        in_sets = None
        flagged = anomaly > known.alarm
        for each, score, flag in zip(fields, anomaly.tolist(), flagged.tolist(), strict=True):
            each |= {"anomaly": score, "anomalous": flag}
        if terms.coverage is not None and scaled.regression:
            low, high = known.intervals(scaled.prediction, coverage=terms.coverage)
            for each, *ends in zip(fields, low.tolist(), high.tolist(), strict=True):
                each["interval"] = tuple(ends)
        elif terms.coverage is not None:
            in_sets = known.in_sets(scaled, coverage=terms.coverage)
            for each, row in zip(fields, in_sets.tolist(), strict=True):
                each["set"] = tuple(compress(names, row))
        abstained: dict[str, int] = {}
        if terms.rules:
            reasons = terms.rules.reasons(
                flagged=flagged,
                in_sets=in_sets,
                confidence=None if in_sets is None else scaled.probabilities.max(axis=1),
                needed=None if terms.selection is None else terms.selection.threshold,
            )
            for each, *objections in zip(fields, *reasons.values(), strict=True):
                each["abstain"] = ", ".join(filter(None, objections))
            abstained = {rule: sum(map(bool, objections)) for rule, objections in reasons.items()}
        return Answers(tuple(Answer(**each) for each in fields), notices, abstained=abstained)

    def _read(self, examples: Examples) -> tuple[Prediction, FloatArray | None, FloatArray]:
        """Return the model's own answers, their OOD scores, and states to compare [n, D]."""
        known = self.calibration
        answers, scores, states = [], [], []
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
            answers.append(predictions)
            states.append(middle(layers))
            if known is not None and known.detector is not None:
                scores.append(known.detector.score(predictions, known.applied(predictions), layers))
        whole = answers[0] if len(answers) == 1 else joined(range(len(examples)), answers)
        return whole, np.concatenate(scores) if scores else None, np.concatenate(states)


def _plain(answers: Prediction, names: tuple[str, ...]) -> list[dict[str, Any]]:
    if answers.regression:
        return [{"value": value} for value in answers.prediction.tolist()]
    if answers.applies is not None:
        both = zip(answers.applies.tolist(), answers.probabilities.tolist(), strict=True)
        return [
            {
                "labels": tuple(compress(names, applies)),
                "probabilities": dict(zip(names, chances, strict=True)),
            }
            for applies, chances in both
        ]
    rows = zip(answers.prediction.astype(int), answers.probabilities.tolist(), strict=True)
    return [
        {
            "label": names[best],
            "probabilities": dict(zip(names, chances, strict=True)),
            "anomaly": 1.0 - max(chances),
        }
        for best, chances in rows
    ]


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
            f"`{name}` must have one for each of `texts`: got {len(given)} for {count}."
        )
