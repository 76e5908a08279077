"""Inputs of perspectives: settings, predictor, aligned data, and cached clean predictions."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar, get_origin

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from temper.data.examples import Examples, without_misfits
from temper.data.spans import texts_at
from temper.errors import DataError, shortened
from temper.evaluation.decisions import decided
from temper.evaluation.folder import Texts
from temper.evaluation.prediction import Prediction, joined
from temper.evaluation.predictor import (
    PerturbablePredictor,
    Precision,
    Predictor,
    RowBatch,
    Session,
    StatePredictor,
    answers_of,
)
from temper.evaluation.rows import ANSWER, LABEL, PREDICTED, TARGETS, Block, Condition
from temper.functional.answers import SPAN_SCORES, answer_scores
from temper.functional.calibration import probabilities_of
from temper.functional.entities import COUNTS, tag_counts
from temper.functional.label_names import are_indices, are_named
from temper.functional.resampling import FloatArray, IntegerArray
from temper.seeding import derive_seed

if TYPE_CHECKING:
    from torch import Tensor

_TWO = {"not_entailment", "non_entailment", "nonentailment", "notentailment"}
_THREE = {"entailment", "neutral", "contradiction"}
HOW_TO_MATCH = (
    "If the model has other names for these labels, map them to the data's: --label-map "
    "MODEL=DATA,... (`label_map`); or name its outputs in their order: --label-names A,B "
    "(`label_names`)."
)
"""Advice if a model's class names and a dataset's labels differ."""


@dataclass(frozen=True)
class Aligned:
    """A set whose labels have the predictor's order.

    A predictor with three NLI classes may have a set with two labels: 0 entailment, 1 not. Then
    ``entailment`` is the index of the predictor's class entailment, else None.
    """

    examples: Examples
    entailment: int | None = None


def align(examples: Examples, label_names: Sequence[str] | None) -> Aligned:
    """Renumber a set's labels by name, in the order of the predictor's ``label_names``.

    A set without label names is unchanged.

    Raises:
        DataError: The predictor does not know a label of the set, or has no label names while the
            set has some.
    """
    if examples.kind in ("multi_label", "tokens") and label_names is not None:
        return Aligned(examples.map_labels(label_names))
    if examples.kind != "classification":
        return Aligned(examples)
    class_names = examples.label_names
    if (
        class_names is not None
        and label_names is not None
        and tuple(class_names) == tuple(label_names)
    ):
        return Aligned(examples)
    if label_names is None:
        if class_names is None or not are_named(class_names) or are_indices(class_names):
            return Aligned(examples)
        names = shortened(", ".join(class_names), longest=300)
        raise DataError(
            f"Set {examples.name!r} has the labels {names}, but the model does not name its "
            "classes. Give these labels in the order of the model's outputs: --label-names A,B "
            "(`label_names`)."
        )
    classes = [_plain(name) for name in label_names]
    plain = [_plain(name) for name in class_names or ()]
    if set(classes) == _THREE and len(plain) == 2 and plain.count("entailment") == 1:
        other = next(name for name in plain if name != "entailment")
        if other in _TWO:
            entailment = plain.index("entailment")
            labels = [int(label != entailment) for label in examples.labels or []]
            two = replace(examples, labels=labels, label_names=("entailment", "not_entailment"))
            return Aligned(two, classes.index("entailment"))
    try:
        return Aligned(examples.map_labels(label_names))
    except DataError as error:
        raise DataError(f"{error} {HOW_TO_MATCH}") from error


def without_unknown(examples: Examples, label_names: Sequence[str] | None) -> Examples:
    """Leave out rows with a label that is not in ``label_names``, with a notice."""
    return without_misfits(examples, lambda rows: align(rows, label_names))


def merge(prediction: Prediction, entailment: int, *, how: Literal["sum", "argmax"]) -> Prediction:
    """Merge predictions of three NLI classes into two: 0 entailment, 1 not.

    Both ways give the same probabilities. ``sum`` predicts the more probable of the two merged
    classes; ``argmax`` predicts one of the three classes, and then merges it (RoAST).

    Example:
        >>> three = Prediction.of_probabilities([[0.4, 0.3, 0.3]])
        >>> merge(three, 0, how="sum").prediction.tolist()
        [1.0]
        >>> merge(three, 0, how="argmax").prediction.tolist()
        [0.0]
    """
    if prediction.probabilities.shape[1] != 3:
        raise DataError(
            "Only three NLI classes can be merged into two, and the model has "
            f"{prediction.probabilities.shape[1]}. Give sets with the model's labels."
        )
    others = [index for index in range(3) if index != entailment]
    logits = None
    if prediction.logits is not None:
        # logsumexp keeps the losses finite if the probabilities sum to 0.
        rest = np.logaddexp(*(prediction.logits[:, index] for index in others))
        logits = np.stack([prediction.logits[:, entailment], rest], axis=1)
        merged = probabilities_of(logits)
    else:
        rest = prediction.probabilities[:, others].sum(axis=1)
        merged = np.stack([prediction.probabilities[:, entailment], rest], axis=1)
    chosen = (prediction.prediction != entailment).astype(np.float64)
    if how == "sum":
        chosen = (merged if logits is None else logits).argmax(axis=1).astype(np.float64)
    return Prediction(merged, chosen, logits, prediction.truncated)


def _plain(name: str) -> str:
    return name.casefold().replace("-", "_").replace(" ", "_")


Merge = Literal["sum", "argmax"]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=1)]


class PerspectiveSettings(BaseModel):
    """Base of the settings of a perspective, which are in ``evaluate`` under its name.

    A single value is accepted for a list. Lists must not repeat a value.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any, field: ValidationInfo) -> Any:
        """Accept a single value for a list, as in ``--set evaluate.embedding_attack.radii=0.1``."""
        listed = get_origin(cls.model_fields[field.field_name or ""].annotation) is tuple
        alone = isinstance(value, str | int | float) and not isinstance(value, bool)
        return (value,) if listed and alone else value

    @field_validator("*")
    @classmethod
    def _distinct(cls, values: Any, field: ValidationInfo) -> Any:
        if values == () and cls.model_fields[field.field_name or ""].default != ():
            raise ValueError("must have at least one value")
        if isinstance(values, tuple) and len(set(values)) != len(values):
            raise ValueError(f"must not repeat a value, got {list(values)}")
        return values


_Settings = TypeVar("_Settings", bound=BaseModel)


class CommonSettings(PerspectiveSettings):
    """Settings that all perspectives share."""

    perspectives: tuple[str, ...] = Field(description="Perspectives to measure.")
    attack_rows: int | None = Field(
        default=None,
        ge=1,
        description="Dev rows to attack, corrupt or measure for smoothness, chosen by hash. "
        "Default: all.",
    )
    merge: Merge = Field(
        default="sum",
        description="How a model with three NLI classes predicts a set with two labels: `sum` adds "
        "the probabilities of neutral and contradiction first, `argmax` decides among "
        "three (RoAST).",
    )
    batch_size: int = Field(
        default=32, ge=1, description="Rows of a forward pass; does not change the results."
    )
    precision: Precision = Field(
        default="fp32",
        description="Precision of a checkpoint's forward passes: `fp32` keeps that of the "
        "weights, `bf16` is mixed precision. Jacobians, Hessians and word swaps are "
        "always computed in fp32.",
    )
    bootstrap: int = Field(
        default=1000,
        ge=0,
        description="Bootstrap resamples of each interval without a closed form; 0 computes no "
        "intervals.",
    )
    seed: int = Field(default=0, description="Seed of every random draw.")

    def section(self, name: str, kind: type[_Settings]) -> _Settings:
        """Return the settings of the perspective ``name``, of class ``kind``, else defaults."""
        given = (self.model_extra or {}).get(name)
        return given if isinstance(given, kind) else kind()

    def without(self, names: Container[str]) -> Self:
        kept = tuple(name for name in self.perspectives if name not in names)
        return self.model_copy(update={"perspectives": kept})


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
        answers = self.predictor.predict(examples, batch_size=self.settings.batch_size)
        return decided(answers, self.thresholds)

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
        self._clean.setdefault(name, decided(prediction, self.thresholds))
        if prediction.truncated is not None:
            self.truncated[name] = prediction.truncated

    def forget(self) -> None:
        """Free the cached clean predictions."""
        self._clean.clear()

    def answers(self, part: RowBatch, logits: Tensor) -> Prediction:
        """Return the predictions of a batch from a session's logits; thresholds are not applied."""
        return answers_of(logits, gives=self.predictor.gives, batch=part.batch, items=part.items)

    def joined(self, indices: Sequence[int], answers: Sequence[Prediction]) -> Prediction:
        """Join the predictions of batches in order, and decide at the thresholds."""
        return decided(joined(indices, answers), self.thresholds)

    def attacked(self, *, at_most: int | None = None) -> tuple[Examples, IntegerArray]:
        """Return the validation rows to perturb, and their positions.

        At most ``at_most`` and the setting ``attack_rows`` are chosen by hash; a smaller limit
        chooses a subset.
        """
        limits = (self.settings.attack_rows, at_most)
        limit = min((each for each in limits if each is not None), default=len(self.dev))
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


def labels_of(examples: Examples, *, labeled: bool = True) -> FloatArray:
    """Return labels as float64 [n], or [n, L] for several labels; NaN if there are none."""
    if not labeled or examples.labels is None:
        return np.full(len(examples), np.nan)
    return np.asarray(examples.labels, dtype=np.float64)


def block_of(
    condition: Condition,
    examples: Examples,
    prediction: Prediction,
    *,
    index: IntegerArray | None = None,
    labeled: bool = True,
) -> Block:
    """Return predictions as rows; ``index`` are their positions in the set, None for 0..n-1.

    Raises:
        DataError: A label is outside the predictor's classes.
    """
    units = (prediction.applies, prediction.words, prediction.spans, prediction.targets)
    if any(each is not None for each in units):
        measured = _counted(examples, prediction, labeled=labeled)
        several = prediction.applies is not None
        nothing = np.full(len(examples), np.nan)
        return Block(
            condition=condition,
            row=examples.rows,
            index=np.arange(len(examples)) if index is None else index,
            label=nothing,
            prediction=nothing,
            probabilities=prediction.probabilities if several else np.empty((len(examples), 0)),
            loss=prediction.loss(labels_of(examples)) if several and measured else nothing,
            group=_named(examples.group),
            measured=measured,
        )
    labels = labels_of(examples, labeled=labeled)
    classes = prediction.probabilities.shape[1]
    # NaN if no label is known, which compares false.
    least, most = np.fmin.reduce(labels, initial=np.nan), np.fmax.reduce(labels, initial=np.nan)
    if classes and (least < 0 or most >= classes):
        raise DataError(
            f"Set {condition.set!r} has the label {most:g}, but the model has {classes} "
            f"classes (0..{classes - 1}). Evaluate on data with the model's labels."
        )
    return Block(
        condition=condition,
        row=examples.rows,
        index=np.arange(len(examples)) if index is None else index,
        label=labels,
        prediction=prediction.prediction,
        probabilities=prediction.probabilities,
        loss=prediction.loss(labels),
        group=_named(examples.group),
        pair=_named(examples.pair),
    )


def _counted(examples: Examples, prediction: Prediction, *, labeled: bool) -> dict[str, FloatArray]:
    """Return `Block.measured` for several labels, tags, answers in contexts or completions.

    It is empty without labels.
    """
    if not labeled or examples.labels is None:
        return {}
    if prediction.targets is not None:
        # Predictions under perturbations lack the bins of confidence, which ECE needs.
        return dict(zip(TARGETS, prediction.targets.T, strict=False))
    if prediction.spans is not None:
        result = texts_at(prediction.spans.tolist(), examples.text_pair or ())
        right = ([text for _, text in answers] for answers in examples.labels)
        scores = dict(zip(SPAN_SCORES, answer_scores(result, right).T, strict=True))
        return {**scores, ANSWER: prediction.probabilities[:, 0]}
    if prediction.words is None:
        assert prediction.applies is not None
        known = examples.label_names or ()
        names = [f"{prefix}{name}" for prefix in (LABEL, PREDICTED) for name in known]
        values = np.concatenate([np.array(examples.labels), prediction.applies], axis=1)
        return dict(zip(names, values.T.astype(np.float64), strict=True))
    tags = prediction.by_example(np.nan_to_num(prediction.prediction, nan=-1.0))
    predicted = [row.astype(int).tolist() for row in tags]
    counts = tag_counts(examples.labels, predicted, examples.label_names or ())
    return dict(zip(COUNTS, counts.T, strict=True))


def _named(names: list[str | None] | None) -> list[str | None] | None:
    return names if any(name is not None for name in names or ()) else None
