"""The output of ``temper predict``: a prediction per text, and results for all texts together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, overload

from temper.evaluation.prediction import Prediction
from temper.functional.estimates import Estimate
from temper.functional.resampling import FloatArray


@dataclass(frozen=True)
class TaggedSpan:
    """A part of a text with a tag: an entity, or a word if tags mark no entities.

    ``start`` and ``end`` (exclusive) are in characters. ``probability`` is the product of the
    probabilities of its words' predicted tags.
    """

    label: str
    text: str
    start: int
    end: int
    probability: float


@dataclass(frozen=True)
class Span:
    """The part of a context that answers a question.

    ``start`` and ``end`` (exclusive) are in characters. ``probability`` is that of the first token
    as the start, times that of the last token as the end.
    """

    text: str
    start: int
    end: int
    probability: float


@dataclass(frozen=True)
class CalibratedPrediction:
    """The prediction for one text, after calibration if the model has one.

    Fields that do not apply to the model, or were not requested, are None.

    Args:
        label: The predicted class; for a question with choices, the text of the predicted choice.
        labels: The predicted labels of a model with several labels per text.
        entities: The predicted entities, or words with their tags.
        choice: Index of the predicted choice.
        span: The part of the second text (the context) that answers the question.
        completion: The text that a language model generates for the prompt.
        value: The predicted value of a regression.
        set: The classes in the prediction set.
        interval: The ends of the prediction interval of a regression.
        anomaly: OOD score, higher is more unusual: that of the calibration's detector, else 1 minus
            the largest probability.
        anomalous: Whether ``anomaly`` is above the calibration's threshold.
        abstain: Why the model abstains; empty if it does not, None without rules of abstention.
        probabilities: Class name, or index of a choice -> probability, calibrated if the model has
            a calibration; empty if there are no classes.
    """

    label: str | None = None
    labels: tuple[str, ...] | None = None
    entities: tuple[TaggedSpan, ...] | None = None
    choice: int | None = None
    span: Span | None = None
    completion: str | None = None
    value: float | None = None
    set: tuple[str, ...] | None = None
    interval: tuple[float, float] | None = None
    anomaly: float | None = None
    anomalous: bool | None = None
    abstain: str | None = None
    # Last, because they may be many.
    probabilities: dict[str, float] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """Return the fields that apply as JSON values, as ``temper predict`` writes them."""
        fields = {name: _plain(value) for name, value in vars(self).items()}
        return {name: value for name, value in fields.items() if value not in (None, {})}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return asdict(value) if isinstance(value, TaggedSpan | Span) else value


@dataclass(frozen=True)
class Shift:
    """Result of the test for a shift between a batch of texts and the held-out rows.

    Args:
        p: p value of a permutation test on the MMD of the hidden states, or of the predictions if
            the calibration has no states. It is valid on average over draws of the held-out rows,
            not for each draw.
        shifted: Whether p <= 0.00235. With 95% of the draws of held-out rows, at most 1% of batches
            without a shift are below this level.
        rows: Number of texts of the batch that were compared.
    """

    p: float
    shifted: bool
    rows: int

    def __str__(self) -> str:
        has = "has shifted" if self.shifted else "shows no shift"
        return f"The batch {has} from the held-out rows (p = {self.p:.3g}, {self.rows} texts)."


@dataclass(frozen=True)
class UnlabeledScores:
    """Estimated accuracy and macro-F1 of texts without labels, with 90% intervals.

    If they cannot be estimated, both are None and there is a ``reason``.
    """

    rows: int
    accuracy: Estimate | None = None
    macro_f1: Estimate | None = None
    reason: str | None = None

    def __str__(self) -> str:
        if self.accuracy is None or self.macro_f1 is None:
            return f"Accuracy cannot be estimated without labels: {self.reason}."
        named = {"accuracy": self.accuracy, "macro-F1": self.macro_f1}
        shown = ", ".join(
            f"{name} {item.value:.1%} [{item.low:.1%}, {item.high:.1%}]"
            for name, item in named.items()
        )
        return f"Estimated without labels: {shown} (90% intervals, {self.rows} texts)."


@dataclass(frozen=True)
class CalibratedPredictions(Sequence[CalibratedPrediction]):
    """The predictions for some texts, in their order.

    Args:
        rows: One prediction per text.
        notices: Notices for the user, for example about truncated texts.
        shift: Shift test of all texts together; None for fewer than 20 texts or without a
            calibration.
        scores: Estimated accuracy and macro-F1; None without held-out rows.
        uncalibrated: The uncalibrated predictions.
        states: Hidden states of the middle layer, [n, D].
        abstained: Rule -> number of texts on which it abstains.
    """

    rows: tuple[CalibratedPrediction, ...] = ()
    notices: tuple[str, ...] = ()
    shift: Shift | None = None
    scores: UnlabeledScores | None = None
    uncalibrated: Prediction | None = field(default=None, repr=False, compare=False)
    states: FloatArray | None = field(default=None, repr=False, compare=False)
    abstained: Mapping[str, int] = field(default_factory=dict, compare=False)

    def summary(self) -> dict[str, Any]:
        asked = [row.abstain for row in self.rows if row.abstain is not None]
        flags = [row.anomalous for row in self.rows if row.anomalous is not None]
        return {
            "rows": len(self),
            "abstained": sum(map(bool, asked)) if asked else None,
            "anomalous": sum(flags) if flags else None,
            "shift": None if self.shift is None else asdict(self.shift),
            "estimate": None if self.scores is None else asdict(self.scores),
            "notices": list(self.notices),
        }

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> CalibratedPrediction: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[CalibratedPrediction, ...]: ...

    def __getitem__(
        self, index: int | slice
    ) -> CalibratedPrediction | tuple[CalibratedPrediction, ...]:
        return self.rows[index]
