"""Calibration: ECE, Brier and NLL of the clean labeled rows, raw and after temperature scaling.

The rows of dev, of the shift and of the adversarial sets are scored. The condition
``temperature`` has the scores after temperature scaling, never with a temperature fitted on the
same row. It is fitted on held-out rows. If there are none, the validation rows are split into two
folds by a hash of the text, so that equal texts stay together. Rows of a fold, also of other sets,
get the temperature that was fitted on the other fold of dev.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from temper.data.examples import Examples, Kind
from temper.display.cells import Comparison
from temper.display.charts import Axis, Curve, Figure, Lines, Look, Point, diagonal, style
from temper.display.folders import Run, Source
from temper.display.views import Heading, mean_or_first
from temper.errors import DataError
from temper.evaluation.alignment import merge
from temper.evaluation.binned import binned_error
from temper.evaluation.blocks import block_of, labels_of
from temper.evaluation.measurement import Measurement
from temper.evaluation.perspectives.registry import ALL_KINDS, LABELED, Perspective
from temper.evaluation.prediction import Prediction
from temper.evaluation.rows import ANSWER, TARGETS, Block, Condition
from temper.evaluation.scoring import ScoreEntry, Scoring, mean_of
from temper.evaluation.span_calibration import SpanLogits
from temper.evaluation.tag_calibration import (
    in_entities,
    tag_block,
    tag_statistics,
    tagged_words,
    word_labels,
)
from temper.functional.answers import SPAN_SCORES
from temper.functional.calibration import (
    Temperature,
    adaptive_calibration_error,
    brier_of_rows,
    classwise_calibration_error,
    expected_calibration_error,
    fit_temperature,
    log_probabilities,
    reliability,
    scaled,
)
from temper.functional.intervals import Centered, Statistic, fewest_rows
from temper.functional.proportions import OfKinds
from temper.functional.resampling import FloatArray, IntegerArray
from temper.functional.scores import NO_ROWS, ScoreFacts, facts
from temper.functional.thresholds import FittedOn, Refitted
from temper.functional.units import PLAIN
from temper.seeding import derive_seed

_ece = expected_calibration_error
SCORES = (
    ScoreFacts("ece_10", "ECE (10 bins)", False, 0.0, NO_ROWS, measure=partial(_ece, bins=10)),
    ScoreFacts("ece_15", "ECE (15 bins)", False, 0.0, NO_ROWS, measure=partial(_ece, bins=15)),
    ScoreFacts("adaptive_ece", "ECE (15 equal masses)", False, 0.0, NO_ROWS,
               measure=adaptive_calibration_error),
    ScoreFacts("classwise_ece", "Class-wise ECE (15 bins)", False, 0.0, NO_ROWS,
               measure=classwise_calibration_error),
    ScoreFacts("brier", "Brier", False, 0.0, NO_ROWS, PLAIN),
    ScoreFacts("nll", "NLL", False, 0.0, "a label has probability 0", PLAIN),
)  # fmt: skip
NAMES = tuple(score.name for score in SCORES)
OF_ENTITIES = ScoreFacts("entity_ece", "ECE of entities (10 bins)", False, 0.0, NO_ROWS)
OF_LABELS = ("classwise_ece", "nll")
"""Scores of models that predict several labels per text."""
OF_ANSWERS = ("ece_10", "ece_15", "adaptive_ece")
"""Scores of extractive question answering; exact matches count as right."""
UNSCALED: tuple[Kind, ...] = ("regression", "multi_label", "completions")
"""Kinds of labels for which an evaluation does no temperature scaling."""
TEMPERATURE = "temperature"
HELD_OUT = "held_out"
BINS = 10
"""Number of bins of the reliability diagrams."""
AFTER = ", after temperature scaling"
DRAWN = (*((name, "clean") for name in LABELED), ("calibration", TEMPERATURE))
"""(perspective, condition) of the rows that reliability diagrams show."""


def rows(measurement: Measurement) -> Iterable[Block]:
    """Yield the labeled rows after temperature scaling, and the held-out rows of the fit."""
    if measurement.dev.kind in UNSCALED:
        return
    sets = measurement.labeled
    tags, spans = (measurement.dev.kind == kind for kind in ("tokens", "spans"))
    if tags:
        for name, examples in sets.items():
            clean = measurement.clean(name, examples)
            yield tag_block(Condition("calibration", name), examples, clean)
    try:
        # Also scored below: one pass over dev serves both.
        of_dev = SpanLogits.of(measurement, measurement.dev) if spans else None
        temperatures, held_out = _fitted(measurement, of_dev)
    except ValueError as error:
        measurement.notices.append(f"Calibration after temperature scaling is left out: {error}.")
        return
    yield from held_out
    for name, examples in sets.items():
        clean = measurement.clean(name, examples)
        folds = fold_numbers(examples.rows, seed=measurement.settings.seed)
        divisors = temperatures[folds % len(temperatures)]
        condition = Condition("calibration", name, TEMPERATURE)
        if tags:
            assert clean.logits is not None
            assert clean.words is not None
            logits = clean.logits / np.repeat(divisors, clean.words)[:, np.newaxis]
            predictions = Prediction.of_tags(clean.by_example(logits))
            yield tag_block(condition, examples, predictions)
            continue
        if of_dev is not None:
            logits_of = of_dev if name == "dev" else SpanLogits.of(measurement, examples)
            sure = logits_of.probabilities(divisors)
            predictions = replace(clean, probabilities=sure[:, np.newaxis])
            yield block_of(condition, examples, predictions)
            continue
        prediction = with_temperature(clean, divisors)
        if name in measurement.entailment:
            entailment = measurement.entailment[name]
            chosen = merge(clean, entailment, how=measurement.settings.merge).prediction
            prediction = merge(prediction, entailment, how="argmax")
            # With "sum" a temperature can change which of two merged classes is more likely.
            prediction = replace(prediction, prediction=chosen)
        yield block_of(condition, examples, prediction)


def score(scoring: Scoring) -> list[ScoreEntry]:
    """Score dev, shift and adversarial sets, before and after temperature scaling."""
    if scoring.clean.kind == "tokens":
        return [
            entry
            for block in scoring.of("calibration")
            for entry in scoring.entries_of(block.condition, tag_statistics(block), rows=len(block))
        ]
    scaled_blocks = {
        block.condition.set: block
        for block in scoring.of("calibration")
        if block.condition.name == TEMPERATURE
    }
    fitted = _fitted_on(scoring) if scaled_blocks and scoring.clean.classifies else None
    entries = []
    for block in scoring.of(*LABELED):
        name = block.condition.set
        entries += _entries(scoring, Condition("calibration", name), block, block)
        if block.has_confidence:
            condition = Condition("calibration", name, TEMPERATURE)
            after = scaled_blocks.get(name)
            if after is None or fitted is None:
                entries += _entries(scoring, condition, after, block)
                continue
            drawn, indices = fitted.drawn(after)
            statistics = {name: fitted.statistic(name, after, indices) for name in NAMES}
            entries += scoring.entries_of(condition, statistics, rows=len(block), drawn=drawn)
    return entries


LARGEST_STEP = 10.0
"""Maximum step of the log temperature in the difference quotients of scores."""


@dataclass(frozen=True)
class _FittedRows:
    """The rows that the temperatures were fitted on, for intervals that include the fit's error.

    A bootstrap resample draws these rows first. ``folds`` has the fit of each fold's temperature,
    or a single fit on held-out rows.
    """

    rows: Block
    folds: tuple[FittedOn, ...]
    seed: int

    def drawn(self, block: Block) -> tuple[int, IntegerArray]:
        """Return how many rows a resample draws, and the indices of ``block`` among them."""
        size, name = len(self.rows), self.rows.condition.set
        if block.condition.set == name and len(self.folds) > 1:
            return size, np.searchsorted(self.rows.index, block.index)
        return size + len(block), size + np.arange(len(block))

    def statistic(self, name: str, block: Block, indices: IntegerArray) -> Statistic:
        """Return a score of a block as a function of resample counts; see `drawn`."""
        given = statistic_of(name, block)
        centered = isinstance(given, Centered)
        score = given.statistic if isinstance(given, Centered) else given
        folds = fold_numbers(block.row, seed=self.seed) % len(self.folds)
        once = np.ones((1, len(block)))

        def at(fold: int, step: float) -> float:
            temperatures = np.where(folds == fold, np.exp(step), 1.0)
            logits = scaled(log_probabilities(block.probabilities), temperatures)
            loss = -logits[np.arange(len(block)), block.label.astype(np.int64)]
            moved = replace(block, probabilities=np.exp(logits), loss=loss)
            return float(statistic_of(name, moved)(once)[0])

        # A central difference over one standard error: an ECE is a step function of the
        # temperature, because rows jump between bins, so it has no derivative.
        # If all rows have nearly the same prediction, the temperature is almost undetermined.
        steps = [min(fit.error, LARGEST_STEP) for fit in self.folds]
        slopes = [
            (at(fold, step) - at(fold, -step)) / (2 * step) if step else 0.0
            for fold, step in enumerate(steps)
        ]
        refitted = Refitted(score, indices, self.folds, slopes, fewest_rows(given, len(block)))
        return Centered(refitted) if centered else refitted


def statistic_of(name: str, block: Block) -> Statistic:
    """Return one of `SCORES` of a labeled block, as a function of resample counts [R, n]."""
    score = facts(name)
    if name == "brier":
        return mean_of(brier_of_rows(block.label, block.probabilities))
    if name == "nll":
        return mean_of(block.loss)
    if name != "classwise_ece":
        return Centered(score.statistic(block.correct, block.confidence))
    if block.kind != "multi_label":
        return Centered(OfKinds(score.statistic(block.label, block.probabilities), block.label))
    by_label = [
        facts("ece_15").statistic(applies, chances)
        for applies, chances in zip(block.applies.T, block.probabilities.T, strict=True)
    ]
    return Centered(lambda counts: np.mean([error(counts) for error in by_label], axis=0))


def _fitted_on(scoring: Scoring) -> _FittedRows | None:
    """Return the rows that the temperatures were fitted on; None if no temperature is optimal."""
    held_out = [block for block in scoring.of("calibration") if block.condition.name == "clean"]
    rows = held_out[0] if held_out else scoring.clean
    labels, logits = rows.label, log_probabilities(rows.probabilities)
    folds = fold_numbers(rows.row, seed=scoring.seed)
    chosen = (
        [np.arange(len(rows))] if held_out else [np.flatnonzero(folds != fold) for fold in (0, 1)]
    )
    try:
        fits = [FittedOn.of(labels[item], logits[item], item) for item in chosen]
    except ValueError:
        return None
    return _FittedRows(rows, tuple(fits), scoring.seed)


def fold_numbers(rows: Iterable[str], *, seed: int) -> IntegerArray:
    """Return the fold of each row, 0 or 1, by the hash of its text."""
    result = (derive_seed(seed, "calibration", row) % 2 for row in rows)
    return np.fromiter(result, dtype=np.int64)


def with_temperature(prediction: Prediction, temperature: ArrayLike) -> Prediction:
    """Divide logits by one temperature or [n]; the predicted classes stay the same."""
    logits = scaled(_logits(prediction), temperature)
    # A probability of 0 has no finite logit for a loss.
    kept = logits if prediction.logits is not None else None
    return replace(prediction, logits=kept, probabilities=np.exp(logits))


def _fitted(measurement: Measurement, of_dev: SpanLogits | None) -> tuple[FloatArray, list[Block]]:
    """Fit one temperature on the held-out rows, or two by cross-fitting on validation rows.

    ``of_dev`` has dev's logits of answers in contexts; None for other labels. Return the
    temperatures, and the held-out rows as blocks.
    """
    if measurement.held_out is not None:
        examples = _unscored(measurement, measurement.held_out)
        of_held_out = None if of_dev is None else SpanLogits.of(measurement, examples)
        # Not through `Measurement.clean`: it caches by name, and a scored set may have this name.
        prediction = measurement.predict(examples)
        _check_classes(examples, prediction)
        fitted = _fit(*_scored(examples, prediction, of_held_out)[:2], "held-out rows")
        measurement.notices.append(
            f"The temperature of the calibration is {_words(fitted)}, fitted on held-out rows."
        )
        if examples.kind in ("tokens", "spans"):
            return np.asarray([fitted.value]), []
        # These rows are stored, so that the temperature can be fitted again from them.
        block = block_of(Condition("calibration", HELD_OUT), examples, prediction)
        return np.asarray([fitted.value]), [block]
    prediction = measurement.clean("dev", measurement.dev)
    labels, logits, rows = _scored(measurement.dev, prediction, of_dev)
    folds = fold_numbers(measurement.dev.rows, seed=measurement.settings.seed)[rows]
    both = [
        _fit(labels[folds != fold], logits[folds != fold], "validation rows of a fold")
        for fold in (0, 1)
    ]
    measurement.notices.append(
        "There are no held-out rows, so temperature scaling splits the validation set into two "
        "folds and fits the temperature of each fold on the other one: "
        f"{' and '.join(map(_words, both))}."
    )
    return np.asarray([fitted.value for fitted in both]), []


def _scored(
    examples: Examples, prediction: Prediction, spans: SpanLogits | None
) -> tuple[FloatArray, FloatArray, IntegerArray]:
    """Return labels [m] and logits [m, C] to fit a temperature on, and the rows of both [m]."""
    if spans is not None:
        return spans.known()
    if prediction.words is None:
        return labels_of(examples), _logits(prediction), np.arange(len(examples))
    names = examples.label_names or ()
    labels, words = tagged_words(word_labels(examples, prediction), prediction, names)
    rows = np.repeat(np.arange(len(examples)), prediction.words)
    return labels, _logits(words), rows[in_entities(prediction, names)]


def _fit(labels: FloatArray, logits: FloatArray, rows: str) -> Temperature:
    try:
        return fit_temperature(labels, logits)
    except ValueError as error:
        raise ValueError(
            f"no temperature can be fitted on {len(labels)} {rows}: {error}. Pass more rows"
        ) from error


def _unscored(measurement: Measurement, examples: Examples) -> Examples:
    kept = examples.apart(measurement.labeled.values())
    if not kept:
        raise DataError(
            f"All {len(examples)} held-out rows of set {examples.name!r} are also evaluated, so no "
            "row is left to fit a temperature on. Choose other rows with `sets.held_out`, or none: "
            "then the temperature is cross-fitted on the validation rows."
        )
    if lost := len(examples) - len(kept):
        measurement.notices.append(
            f"{lost} held-out rows are also scored, and were left out when the temperature was "
            "fitted."
        )
    return examples.select(kept)


def _check_classes(examples: Examples, prediction: Prediction) -> None:
    """Raise unless the held-out labels are the model's classes, such as three NLI classes."""
    if prediction.spans is not None:
        return
    classes = prediction.probabilities.shape[1]
    named = classes if examples.label_names is None else len(examples.label_names)
    if examples.kind not in ("classification", "choices", "tokens") or named != classes:
        raise DataError(
            f"The held-out set {examples.name!r} must be labeled with the model's {classes} "
            f"classes; it is of kind {examples.kind!r} with {named} classes. Pass such rows with "
            "`sets.held_out`."
        )


def _entries(
    scoring: Scoring, condition: Condition, block: Block | None, unscaled: Block
) -> list[ScoreEntry]:
    """Return score entries of a block; without a block or probabilities, undefined entries.

    ``unscaled`` are the same rows before temperature scaling.
    """
    names_of = {"classification": NAMES, "multi_label": OF_LABELS, "spans": OF_ANSWERS}
    if block is not None and block.kind in names_of:
        statistics = {name: statistic_of(name, block) for name in names_of[block.kind]}
        return scoring.entries_of(condition, statistics, rows=len(block))
    if block is not None and block.kind == "completions":
        # The confidence is that of the most likely next token.
        error = binned_error(TARGETS[1], block.measured)
        return scoring.entries_of(condition, {"ece_10": error}, rows=len(block))
    reason = "a regression has no probabilities"
    if block is None:
        reason = "no temperature was fitted, see the notices"
    return [
        scoring.undefined(condition, name, reason=reason, rows=len(unscaled))
        for name in names_of.get(unscaled.kind, NAMES)
    ]


def _logits(prediction: Prediction) -> FloatArray:
    """Return logits, or log probabilities, which differ from logits by a constant per row."""
    if prediction.logits is not None:
        return prediction.logits
    return log_probabilities(prediction.probabilities)


def _words(fitted: Temperature) -> str:
    return (
        f"{fitted.value:.4g} ({fitted.rows} labels, NLL {fitted.before:.4f} before and "
        f"{fitted.after:.4f} after)"
    )


def figures(source: Source, comparison: Comparison) -> list[Figure]:
    """Draw reliability diagrams: accuracy over confidence in ten bins, for each labeled set.

    Rows of all seeds of a method are pooled, because the bins of one seed are often too small. A
    second figure shows the rows after temperature scaling, if there are any.
    """
    pooled: dict[str, dict[str, list[tuple[Any, Any]]]] = {}
    for run in source.runs:
        for perspective, condition in DRAWN:
            for name, hits, sure in confidences(run, perspective, condition):
                after = AFTER if perspective == "calibration" else ""
                columns = pooled.setdefault(name + after, {})
                columns.setdefault(run.column, []).append((hits, sure))
    looks = style([column.name for column in source.columns], source.reference)
    drawn = []
    # A set's figure after scaling comes right after the one before scaling.
    names = list(pooled)
    for name in sorted(names, key=lambda name: names.index(name.removesuffix(AFTER))):
        columns = pooled[name]
        curves = [_diagram(column, parts, looks[column]) for column, parts in columns.items()]
        drawn.append(
            Figure(
                f"Reliability, {name}",
                f"Below the dotted line a model is overconfident. {BINS} bins of equal width, "
                "rows of all seeds together; a bin's size is in its label.",
                Lines(
                    Axis("confidence", (0.0, 1.02)),
                    Axis("fraction of right predictions", (0.0, 1.02)),
                    (diagonal("perfect"), *curves),
                ),
            )
        )
    return drawn


def confidences(
    run: Run, perspective: str, condition: str = "clean"
) -> Iterable[tuple[str, FloatArray, FloatArray]]:
    """Yield each set's name, whether predictions are right (1 or 0) [n], and confidences [n]."""
    columns = ["set", "condition", "label", "prediction", "probabilities"]
    of_answers = [SPAN_SCORES[1], ANSWER]
    rows = run.rows(columns, perspective, optional=of_answers)
    rows = rows[rows["condition"] == condition]
    for name, part in rows.groupby("set", sort=False):
        if ANSWER in part and part[ANSWER].notna().all():
            yield str(name), *(part[column].to_numpy(dtype=np.float64) for column in of_answers)
            continue
        part = part[part["label"].notna() & (part["probabilities"].map(len) > 0)]
        if len(part):
            right = (part["label"] == part["prediction"]).to_numpy(dtype=np.float64)
            # Not the largest one: with `merge="argmax"` the class was chosen among three.
            chosen = zip(part["probabilities"], part["prediction"], strict=True)
            yield str(name), right, np.asarray([row[int(label)] for row, label in chosen])


def in_words(comparison: Comparison) -> str:
    """Return the ECE after temperature scaling."""
    rows = mean_or_first(comparison.of("calibration", "ece_10"))
    scaled_rows = [row for row in rows if row.key.condition == TEMPERATURE]

    def say(column: str) -> str:
        return " ".join(
            f"{row.label}: {row.value_text(column)} {row.interval_text(column)}".strip() + "."
            for row in scaled_rows
            if row.cells[column].mean is not None
        )

    return comparison.said(say)


def _diagram(column: str, parts: list[tuple[Any, Any]], look: Look) -> Curve:
    hits = np.concatenate([part[0] for part in parts])
    sure = np.concatenate([part[1] for part in parts])
    bins = reliability(hits, sure, bins=BINS)
    points = tuple(
        Point(
            confidence,
            right,
            f"{column}; confidence {confidence:.3f}: right {right:.3f}; {rows} rows",
        )
        for confidence, right, rows in zip(
            bins.confidence.tolist(), bins.accuracy.tolist(), bins.rows.tolist(), strict=True
        )
        if rows
    )
    return Curve(column, points, look, column=column)


CALIBRATION = Perspective(
    name="calibration",
    title="Calibration",
    order=110,
    heading=Heading.CALIBRATION,
    explained="ECE is the mean difference between the confidence and the fraction of right "
    "predictions, over bins of confidence. 0 is perfect; at 10%, predictions with 90% confidence "
    "are right about 80 times in 100.",
    gain="is {better} calibrated ({score} {ours}, {compared})",
    leads="ece_10",
    sums_up=mean_or_first,
    conditions={TEMPERATURE: "after temperature scaling"},
    says=in_words,
    figures=figures,
    improves=True,
    without_training=TEMPERATURE,
    averaged=True,
    rescores=LABELED,
    kinds=ALL_KINDS,
    summary="ECE (10 and 15 bins), adaptive and class-wise ECE, Brier score and NLL, before and "
    "after temperature scaling; a subset of these for several labels per text, tags, answer "
    "spans and next tokens",
    scores=(*SCORES, OF_ENTITIES),
    rows=rows,
    score=score,
)
