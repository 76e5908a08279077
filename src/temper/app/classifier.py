"""Answer texts with a model where it is used: what ``temper predict`` does, as a Python object."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, overload

from temper.app.predictors import load_predictor, longest_row
from temper.app.results import TrainingResult
from temper.app.settings import PredictorSettings
from temper.app.temperature import StoredTemperature, stored_temperature
from temper.data.examples import Examples
from temper.errors import DataError
from temper.evaluation.predictor import Prediction, Predictor


@dataclass(frozen=True)
class Answer:
    """What a model says of one text.

    Args:
        label: The predicted class; None of a regression.
        probabilities: Probability of each class by its name, calibrated where the model's folder
            keeps a calibration; empty for a regression.
        value: The predicted value; None of a classifier.
        anomaly: How strange the text looks, higher is stranger: 1 less the largest probability.
            None of a regression.
    """

    label: str | None = None
    probabilities: dict[str, float] = field(default_factory=dict)
    value: float | None = None
    anomaly: float | None = None

    def record(self) -> dict[str, Any]:
        """Return the fields that apply, as ``temper predict`` writes them."""
        if self.value is not None:
            return {"value": self.value}
        return {
            "label": self.label,
            "anomaly": self.anomaly,
            "probabilities": dict(self.probabilities),
        }


@dataclass(frozen=True)
class Answers(Sequence[Answer]):
    """The answers to some texts, in their order.

    Args:
        rows: One answer a text.
        notices: What their reader should know, such as that texts were cut.
    """

    rows: tuple[Answer, ...] = ()
    notices: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.rows)

    def __iter__(self) -> Iterator[Answer]:
        """Iterate over the answers."""
        return iter(self.rows)

    @overload
    def __getitem__(self, place: int) -> Answer: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Answer, ...]: ...

    def __getitem__(self, place: int | slice) -> Answer | tuple[Answer, ...]:
        """Return the answer at a place."""
        return self.rows[place]


class Classifier:
    """Answer texts as ``temper predict`` does; make one with `Classifier.load`.

    Threads may share one: they take turns at the model, since its tokenizer and the hooks that
    read its hidden states keep state through a call. torch computes one forward on several cores.

    Args:
        predictor: The model.
        name: What it is called in messages.
        batch_size: Rows of a forward pass; None takes the predictor's own.
        temperature: What its logits are divided by; None leaves them.

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
        temperature: StoredTemperature | None = None,
    ) -> None:
        self.predictor = predictor
        self.name = name
        self.batch_size = batch_size
        self._temperature = temperature
        self._turn = threading.Lock()

    @classmethod
    def load(
        cls,
        model: str | Path | TrainingResult,
        *,
        max_length: int | None = None,
        batch_size: int = 32,
        device: str | None = None,
        settings: PredictorSettings | None = None,
    ) -> Self:
        """Load a model and the calibration that its folder keeps.

        Args:
            model: As ``temper predict`` takes it: the folder of a run or another checkpoint, a Hub
                id, a ``.skops`` file, or ``file.py:NAME`` of a function. Or what `temper.train`
                returned.
            max_length: Tokens a text is cut to; None takes what the run was trained with, else 128.
            batch_size: Rows of a forward pass, >= 1; changes no result.
            device: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``; None takes a GPU where there
                is one.
            settings: What a function or an estimator does not say itself.

        Raises:
            TemperError: It cannot be loaded, or its calibration is damaged or that of other
                weights.
        """
        name = str(model.folder if isinstance(model, TrainingResult) else model)
        # First, since it is refused in milliseconds.
        temperature = stored_temperature(name)
        predictor = load_predictor(
            name, max_length=max_length, batch_size=batch_size, device=device, settings=settings
        )
        return cls(predictor, name=name, batch_size=batch_size, temperature=temperature)

    def __call__(self, texts: Sequence[str], text_pairs: Sequence[str] | None = None) -> Answers:
        """Answer texts.

        Args:
            texts: The texts; none give no answers.
            text_pairs: The second text of each, for a task of pairs.

        Returns:
            One answer a text, in their order.

        Raises:
            DataError: They are not texts, or not as many second ones as first ones.
            ModelError: An answer is not finite.
        """
        for name, given in (("texts", texts), ("text_pairs", text_pairs)):
            _check_texts(name, given)
        if text_pairs is not None and len(text_pairs) != len(texts):
            raise DataError(
                f"`text_pairs` gives the second text of each of `texts`: got {len(text_pairs)} for "
                f"{len(texts)}."
            )
        pairs = None if text_pairs is None else list(text_pairs)
        return self.answers(Examples("texts", list(texts), pairs))

    def answers(self, examples: Examples) -> Answers:
        """Answer the texts of a set.

        Args:
            examples: Texts; labels are not looked at.

        Raises:
            ModelError: An answer is not finite.
        """
        if not len(examples):
            return Answers()
        with self._turn:
            prediction = self.predictor.predict(examples, batch_size=self.batch_size)
        longest, notices = longest_row(self.predictor), []
        if self._temperature is not None:
            prediction = self._temperature.applied(prediction)
            if longest != self._temperature.max_length:
                notices.append(
                    f"The temperature of {self.name} was fitted on texts cut at "
                    f"{self._temperature.max_length} tokens, and these are cut at {longest}."
                )
        if prediction.truncated:
            notices.append(f"{prediction.truncated:.1%} of the texts were cut at {longest} tokens.")
        return Answers(_answers(prediction, self.predictor.label_names), tuple(notices))


def _answers(prediction: Prediction, names: tuple[str, ...] | None) -> tuple[Answer, ...]:
    """Return one answer a row; classes without names are ``LABEL_0`` and so on."""
    if prediction.regression:
        return tuple(Answer(value=value) for value in prediction.prediction.tolist())
    names = names or tuple(f"LABEL_{place}" for place in range(prediction.probabilities.shape[1]))
    rows = zip(prediction.prediction.astype(int), prediction.probabilities.tolist(), strict=True)
    return tuple(
        Answer(names[best], dict(zip(names, shares, strict=True)), anomaly=1.0 - max(shares))
        for best, shares in rows
    )


def _check_texts(name: str, given: object) -> None:
    if given is None and name == "text_pairs":
        return
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise DataError(f"`{name}` must be a list of texts, got {type(given).__name__}.")
    for place, text in enumerate(given):
        if not isinstance(text, str):
            raise DataError(
                f"`{name}` must be a list of texts, got {type(text).__name__} at place {place}."
            )
