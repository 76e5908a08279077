"""A calibrated model's answers: one for each text, and a summary of all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, overload

from temper.evaluation.prediction import Prediction
from temper.functional.estimates import Estimate
from temper.functional.resampling import FloatArray


@dataclass(frozen=True)
class TaggedSpan:
    """A part of a text with a tag: an entity, or a word if tags mark no entities.

    ``start`` and ``end`` (exclusive) are characters; ``probability`` is the product of those of the
    predicted tags of its words.
    """

    label: str
    text: str
    start: int
    end: int
    probability: float


@dataclass(frozen=True)
class Span:
    """The part of a context that answers a question.

    ``start`` and ``end`` (exclusive) are characters; ``probability`` is the product of those of its
    first and its last token.
    """

    text: str
    start: int
    end: int
    probability: float


@dataclass(frozen=True)
class Answer:
    """The answer to one text.

    Args:
        label: The predicted class; None of a regression, or if a text may have several labels.
        labels: The labels that apply; None if a text has one class or a number.
        entities: The entities, or words with their tags; None if a text as a whole is labeled.
        choice: Index of the choice that is picked, whose text is ``label``; None without choices.
        span: The part of the second text that answers a question; None of other models.
        completion: The text that a language model writes for the prompt; None of other models.
        value: The predicted value; None of a classifier.
        set: The classes that are in the prediction set; None if there is none.
        interval: The ends of the interval of a regression; None if there is none.
        anomaly: How strange the text looks, higher is stranger: the score of the detector that the
            calibration keeps, else 1 less the largest probability; None if neither is known.
        anomalous: Whether that is above the threshold; None if none is kept.
        abstain: Why the answer should not be used, empty if it should; None if no rule says.
        probabilities: Probability of each class by its name, or of each choice by its index,
            calibrated where the model's folder keeps a calibration; empty for a regression.
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
        """Return the fields that apply, as ``temper predict`` writes them."""
        fields = {name: _plain(value) for name, value in vars(self).items()}
        return {name: value for name, value in fields.items() if value not in (None, {})}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return asdict(value) if isinstance(value, TaggedSpan | Span) else value


@dataclass(frozen=True)
class Shift:
    """Whether a batch of texts looks like the held-out rows of the calibration.

    Args:
        p: p value of the two-sample test (MMD of the hidden states, by permutations). On average
            over sets of held-out rows, it is valid: without a shift, it is below any level with at
            most that probability.
        shifted: Whether p is at most 0.0023. For 19 in 20 sets of held-out rows, this holds for at
            most one in a hundred batches without a shift.
        rows: Texts of the batch that were compared.
    """

    p: float
    shifted: bool
    rows: int

    def __str__(self) -> str:
        has = "has shifted" if self.shifted else "shows no shift"
        return f"The batch {has} from the held-out rows (p = {self.p:.3g}, {self.rows} texts)."


@dataclass(frozen=True)
class UnlabeledScores:
    """Scores of texts without labels, estimated, or the reason why they cannot be.

    Accuracy and macro-F1 have 90% intervals; both are None if there is a ``reason``.
    """

    rows: int
    accuracy: Estimate | None = None
    macro_f1: Estimate | None = None
    reason: str | None = None

    def __str__(self) -> str:
        if self.accuracy is None or self.macro_f1 is None:
            return f"Accuracy without labels: cannot tell, because {self.reason}."
        named = {"accuracy": self.accuracy, "macro-F1": self.macro_f1}
        shown = ", ".join(
            f"{name} {each.value:.1%} [{each.low:.1%}, {each.high:.1%}]"
            for name, each in named.items()
        )
        return f"Estimated without labels: {shown} (90% intervals, {self.rows} texts)."


@dataclass(frozen=True)
class Answers(Sequence[Answer]):
    """The answers to some texts, in their order.

    Args:
        rows: One answer a text.
        notices: Notices for the reader, for example about cut texts.
        shift: Result of the shift test on all texts; None for few texts or without a test.
        scores: Estimated accuracy and macro-F1; None if no held-out rows are kept.
        own: The model's own answers, uncalibrated.
        states: The states from the same pass, [n, D].
        abstained: How many texts each rule of abstention objects to.
    """

    rows: tuple[Answer, ...] = ()
    notices: tuple[str, ...] = ()
    shift: Shift | None = None
    scores: UnlabeledScores | None = None
    own: Prediction | None = field(default=None, repr=False, compare=False)
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

    def __iter__(self) -> Iterator[Answer]:
        return iter(self.rows)

    @overload
    def __getitem__(self, index: int) -> Answer: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Answer, ...]: ...

    def __getitem__(self, index: int | slice) -> Answer | tuple[Answer, ...]:
        return self.rows[index]
