"""Error analysis of a classifier: confusion matrix, scores by class, errors, recommendations.

It uses the rows, texts and scores of an evaluation; no model is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from shlex import quote
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from temper.checkpoints.checkpoint import Checkpoint
from temper.display.folders import Run, Source
from temper.display.records import run_record
from temper.display.views import Heading, View
from temper.display.wording import plural
from temper.functional.proportions import wilson
from temper.functional.resampling import FloatArray, IntegerArray, divide
from temper.functional.units import ABSENT, PERCENT
from temper.report.derived import views
from temper.report.predictions import COLUMNS, KEYS, clean_predictions, kept_texts

SHOWN = 10
"""Maximum number of shown errors of each kind, and of classes in a confusion matrix."""
LONGEST = 300
"""Maximum number of shown characters of a text."""
SURE = 0.9
"""Confidence above which an error suggests that the label is wrong."""
CALIBRATION_GAIN = 0.02
"""Reduction of the ECE from which on temperature scaling is recommended."""
BROKEN = 0.1
"""Fraction of right predictions that a perturbation makes wrong, from which on it is reported."""
Texts = Mapping[tuple[str, int], tuple[int | None, str, str]]
"""(set, position) -> (number in the file, text, second text)."""
FEWEST = 10
"""Minimum number of rows of a class to report it."""


@dataclass(frozen=True)
class ClassScores:
    """Scores of one class on the validation set, in [0, 1]; None if undefined.

    ``mistaken_for`` is the most frequent wrong prediction for its texts, ``mistaken`` its count.
    """

    label: str
    precision: float | None
    recall: float | None
    f1: float | None
    texts: int
    mistaken_for: str | None
    mistaken: int

    def cells(self) -> tuple[str, ...]:
        scores = [PERCENT.text(item) for item in (self.precision, self.recall, self.f1)]
        others = f"{self.mistaken_for} ({self.mistaken})" if self.mistaken_for else ABSENT
        return (self.label, *scores, str(self.texts), others)


@dataclass(frozen=True)
class Mistake:
    """A text with wrong predictions.

    Args:
        number: Number of its row in the file, from 1; None if the text was not stored.
        text, text_pair: The unperturbed text, shortened; empty if it was not stored.
        wrong_under: Where the prediction is wrong: ``unperturbed``, or names of perturbations.
    """

    set: str
    index: int
    number: int | None
    text: str
    text_pair: str
    label: str
    prediction: str
    confidence: float
    wrong_under: tuple[str, ...]

    @property
    def shown(self) -> str:
        """The text, or its set and position if it was not stored."""
        both = " | ".join(part for part in (self.text, self.text_pair) if part)
        return both or f"row {self.index + 1} of {self.set}"

    @property
    def where(self) -> str:
        first, *others = self.wrong_under
        return f"{first} and {len(others)} more" if others else first


@dataclass(frozen=True)
class Finding:
    """A finding with a recommended action, and a command for it; empty if there is none."""

    text: str
    command: str = ""


@dataclass(frozen=True)
class ErrorAnalysis:
    """Errors of one classifier.

    Args:
        confusion: Confusion matrix of the validation set: rows are labels, columns predictions.
        confident: Errors on unperturbed texts, by descending confidence.
        fragile: Texts that are right without perturbation, and wrong under the most perturbations.
    """

    labels: tuple[str, ...]
    confusion: tuple[tuple[int, ...], ...]
    classes: tuple[ClassScores, ...]
    confident: tuple[Mistake, ...]
    fragile: tuple[Mistake, ...]
    findings: tuple[Finding, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def error_analysis(source: Source, *, texts: bool = True) -> ErrorAnalysis | None:
    """Analyze the errors of a run or an evaluation.

    ``texts``: whether to show texts; if not, errors have only set and position. The result is None
    for a study, a regression, or an evaluation without rows of its validation set.
    """
    run = source.runs[0] if source.kind != "study" else None
    if run is None or run.scores is None or run.scores.task.kind != "classification":
        return None
    predictions = _with_confidence(clean_predictions(run))
    dev = predictions[predictions["set"] == "dev"]
    if dev.empty:
        return None
    classes = max(len(run.scores.task.labels), len(dev["probabilities"].iloc[0]))
    labels = (*run.scores.task.labels, *map(str, range(len(run.scores.task.labels), classes)))
    confusion = confusion_matrix(dev["label"], dev["prediction"], classes=classes)
    wrong = predictions[predictions["prediction"] != predictions["label"]]
    perturbed = _perturbed(run, predictions)
    kept = _texts(run) if texts else {}
    return ErrorAnalysis(
        labels,
        tuple(map(tuple, confusion.tolist())),
        _by_class(confusion, labels),
        _confident(wrong, labels, kept),
        _fragile(perturbed, labels, kept),
        tuple(_findings(source, run, confusion, labels, dev, perturbed)),
    )


def _perturbed(run: Run, predictions: pd.DataFrame) -> pd.DataFrame:
    """Return predictions on perturbed texts whose unperturbed prediction is right."""
    right = predictions.loc[predictions["prediction"] == predictions["label"], KEYS]
    result = []
    for view in views().values():
        if view.heading != Heading.ROBUSTNESS or view.unperturbed:
            continue
        rows = run.rows([*COLUMNS, "parameters"], view.name)
        rows = rows[rows["label"].notna() & rows["prediction"].notna()].merge(right, on=KEYS)
        # Use the middle strength of each perturbation, as in the overview: the largest breaks any
        # text.
        strengths = rows.groupby("condition", sort=False)["parameters"].unique()
        middle = {condition: values[len(values) // 2] for condition, values in strengths.items()}
        rows = rows[rows["parameters"] == rows["condition"].map(middle)]
        names = {
            condition: _perturbation(view, condition) for condition in rows["condition"].unique()
        }
        result.append(rows.assign(perturbation=rows["condition"].map(names)))
    tables = [table for table in result if len(table)] or result[:1]
    return _with_confidence(pd.concat(tables))


def _perturbation(view: View, condition: str) -> str:
    """Return the name of a perturbation without its strength: ``embedding attack (PGD)``."""
    title, words = view.title_in_text, view.condition(condition)
    return title if words in title else f"{title} ({words})"


def _with_confidence(rows: pd.DataFrame) -> pd.DataFrame:
    confidence = [
        float(probabilities[int(prediction)])
        for probabilities, prediction in zip(rows["probabilities"], rows["prediction"], strict=True)
    ]
    return rows.assign(confidence=np.asarray(confidence, dtype=np.float64))


def _by_class(confusion: IntegerArray, labels: tuple[str, ...]) -> tuple[ClassScores, ...]:
    result = []
    for index, (label, *scores) in enumerate(zip(labels, *class_scores(confusion), strict=True)):
        others = np.where(np.arange(len(labels)) == index, 0, confusion[index])
        mistaken_for = labels[int(others.argmax())] if others.any() else None
        precision, recall, f1 = (None if np.isnan(score) else float(score) for score in scores)
        texts, mistaken = int(confusion[index].sum()), int(others.max())
        result.append(ClassScores(label, precision, recall, f1, texts, mistaken_for, mistaken))
    return tuple(result)


def _confident(wrong: pd.DataFrame, labels: tuple[str, ...], texts: Texts) -> tuple[Mistake, ...]:
    """Return errors on unperturbed texts by descending confidence; each text once."""
    rows = wrong.sort_values(["confidence", "row"], ascending=[False, True])
    rows = rows.drop_duplicates("row").head(SHOWN)
    return _mistakes(rows.assign(under=[("unperturbed",)] * len(rows)), labels, texts)


def _fragile(perturbed: pd.DataFrame, labels: tuple[str, ...], texts: Texts) -> tuple[Mistake, ...]:
    """Return the texts that the most perturbations make wrong, with the most confident error."""
    broken = perturbed[perturbed["prediction"] != perturbed["label"]]
    if broken.empty:
        return ()
    broken = broken.sort_values(["confidence", "row"], ascending=[False, True])
    under = broken.groupby("row")["perturbation"].agg(lambda names: tuple(sorted(set(names))))
    rows = broken.drop_duplicates("row").assign(under=lambda table: table["row"].map(under))
    rows = rows.assign(count=rows["under"].map(len))
    rows = rows.sort_values(["count", "confidence"], ascending=False, kind="stable")
    return _mistakes(rows.head(SHOWN), labels, texts)


def _mistakes(rows: pd.DataFrame, labels: tuple[str, ...], texts: Texts) -> tuple[Mistake, ...]:
    result = []
    for row in rows.to_dict("records"):
        number, text, text_pair = texts.get((row["set"], row["index"]), (None, "", ""))
        result.append(
            Mistake(
                row["set"],
                int(row["index"]),
                number,
                _short(text),
                _short(text_pair),
                labels[int(row["label"])],
                labels[int(row["prediction"])],
                row["confidence"],
                row["under"],
            )
        )
    return tuple(result)


def _texts(run: Run) -> Texts:
    texts = kept_texts(run)
    if texts is None:
        return {}
    texts = texts.loc[texts["perspective"].isna(), [*KEYS, "number", "text", "text_pair"]]
    return {
        (name, index): (int(number), text, text_pair if isinstance(text_pair, str) else "")
        for name, index, number, text, text_pair in texts.itertuples(index=False)
    }


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1].rstrip()}…"


Suggest = Callable[[str], str]
"""Function that fills folder, base model and data into a command; empty if data is unknown."""


def _findings(
    source: Source,
    run: Run,
    confusion: IntegerArray,
    labels: tuple[str, ...],
    dev: pd.DataFrame,
    perturbed: pd.DataFrame,
) -> Iterator[Finding]:
    assert run.scores is not None
    model = Checkpoint.of(source.folder if source.kind == "run" else run.scores.model)
    record = run_record(model)
    data = None if record is None else record.settings.get("data", {}).get("source")

    def suggest(command: str) -> str:
        if record is None or not data:
            return ""
        names = {"model": str(model.folder), "base": record.model, "data": data}
        return command.format_map({name: quote(value) for name, value in names.items()})

    yield from (Finding(sentence) for sentence in run.scores.seen)
    if weak := _hardly_trained(confusion, labels):
        yield weak
    if not model.is_calibrated:
        yield from _miscalibrated(run, suggest)
    yield from _weak_class(confusion, labels)
    wrong = dev[dev["prediction"] != dev["label"]]
    if sure := int((wrong["confidence"] >= SURE).sum()):
        yield Finding(
            f"{sure} of {plural(len(wrong), 'error')} on the validation set "
            f"{'has' if sure == 1 else 'have'} a confidence of at least {SURE:.0%}: check for "
            "wrong labels.",
            suggest("temper check-labels {data} --model {base}"),
        )
    if not weak:
        # Robustness does not matter before a model has learned the task.
        yield from _broken(perturbed, suggest)


def _hardly_trained(confusion: IntegerArray, labels: tuple[str, ...]) -> Finding | None:
    """Report an accuracy not significantly above that of always predicting the majority class."""
    totals, right = confusion.sum(axis=1), int(np.trace(confusion))
    low, _ = wilson(right, int(totals.sum()))
    most = int(totals.argmax())
    if low > (frequent := totals[most] / totals.sum()):
        return None
    return Finding(
        f"The accuracy of {right / totals.sum():.1%} is not significantly above that of always "
        f"predicting `{labels[most]}` ({frequent:.1%}). Train longer or with a higher learning "
        "rate (`--epochs`, `--learning-rate`), or pass more rows."
    )


def _miscalibrated(run: Run, suggest: Suggest) -> Iterator[Finding]:
    """Recommend temperature scaling if it reduces the ECE clearly (`CALIBRATION_GAIN`)."""
    assert run.scores is not None
    result = {
        score.condition: score
        for score in run.scores.scores
        if (score.perspective, score.set, score.name) == ("calibration", "dev", "ece_10")
    }
    raw, scaled = (result.get(condition) for condition in ("clean", "temperature"))
    if raw is None or scaled is None or raw.value is None or scaled.value is None:
        return
    certain = raw.low is None or raw.low > scaled.value
    if raw.value - scaled.value >= CALIBRATION_GAIN and certain:
        yield Finding(
            f"Miscalibrated: the calibration error (ECE) is {raw.value:.1%}, with temperature "
            f"scaling {scaled.value:.1%}. Fit the temperature on labeled rows that the model has "
            "not seen, or with --with-dev on its validation set.",
            suggest("temper calibrate {model} --data {data} --with-dev"),
        )


def _weak_class(confusion: IntegerArray, labels: tuple[str, ...]) -> Iterator[Finding]:
    """Report the class with the lowest recall if it is significantly below the accuracy."""
    totals, hits = confusion.sum(axis=1), np.diag(confusion)
    accuracy = hits.sum() / confusion.sum()
    known = [index for index in range(len(labels)) if totals[index] >= FEWEST]
    if not known:
        return
    weakest = min(known, key=lambda index: hits[index] / totals[index])
    _, high = wilson(int(hits[weakest]), int(totals[weakest]))
    if high < accuracy:
        yield Finding(
            f"Class `{labels[weakest]}` has a recall of {hits[weakest] / totals[weakest]:.1%} "
            f"(accuracy: {accuracy:.1%}). Add texts of this class, or train with "
            "`--set train.class_weights=balanced`."
        )


def _broken(perturbed: pd.DataFrame, suggest: Suggest) -> Iterator[Finding]:
    """Report the perturbation that makes the most right predictions wrong."""
    if perturbed.empty:
        return
    broken = perturbed["prediction"] != perturbed["label"]
    by_kind = broken.groupby(perturbed["perturbation"]).agg(["mean", "sum", "size"])
    worst = by_kind["mean"].idxmax()
    fraction, count, total = by_kind.loc[worst]
    if fraction >= BROKEN:
        yield Finding(
            f"Robustness: {worst} turns {int(count)} of {int(total)} correct predictions wrong. "
            "Search for a more robust recipe.",
            suggest("temper tune --data {data} --model {base} --goal robust"),
        )


def confusion_matrix(labels: ArrayLike, predictions: ArrayLike, *, classes: int) -> IntegerArray:
    """Return the confusion matrix [C, C] of labels [n] and predictions [n], a row per label.

    Example:
        >>> confusion_matrix([0, 0, 1], [0, 1, 1], classes=2).tolist()
        [[1, 1], [0, 1]]
    """
    first, second = (np.asarray(item, dtype=np.int64) for item in (labels, predictions))
    counts = np.bincount(first * classes + second, minlength=classes * classes)
    return counts.reshape(classes, classes)


def class_scores(confusion: IntegerArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return precision, recall and F1 of each class.

    They are [C] each, and NaN if the denominator is 0, like
    ``sklearn.metrics.precision_recall_fscore_support`` with ``zero_division=nan``.

    Example:
        >>> [score.tolist() for score in class_scores(np.array([[3, 1], [0, 4]]))][:2]
        [[1.0, 0.8], [0.75, 1.0]]
    """
    hits, labels, predictions = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    return divide(hits, predictions), divide(hits, labels), divide(2 * hits, labels + predictions)
