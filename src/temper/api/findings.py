"""Findings of `temper.fit` about a dataset, as sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas

from temper.calibration.classifier import Classifier
from temper.checkpoints.folder import RUN, read_json
from temper.data.examples import Examples, Splits
from temper.display.wording import plural
from temper.evaluation.perspectives.coverage import ASKED
from temper.functional.intervals import LEAST_ROWS, mean_difference_interval
from temper.functional.resampling import FloatArray
from temper.functional.units import PERCENT, Unit
from temper.study.alternatives import FROZEN, SETFIT
from temper.study.fit import DEFAULT, LINEAR, PARTS, SIMPLE, WITH_SETFIT, Choice, Trial
from temper.study.wrong_labels import rank_labels

RESAMPLES: Final = 2000
STARTS: Final = {
    None: "a random head",
    FROZEN: "a linear classifier on its frozen embeddings",
    SETFIT: "SetFit",
}
"""Start of a candidate -> what fine-tuning starts from."""
SHOWN: Final = 3
"""Maximum number of texts that a finding quotes."""
CHARACTERS: Final = 60
BRIER: Final = Unit(1.0, 3, "")


def suspicious_labels(choice: Choice) -> pandas.DataFrame:
    """Rank the rows of the folds by how probable a wrong label is, as in `temper.check_labels`.

    The score is the loss of the label under the mean of two predictions: of the best candidate
    (mean over its epochs) and of the linear classifier. ``row`` is a row's number in the file.
    """
    best = choice.trials[0]
    held_out = np.concatenate(choice.folds[: len(best.logs)])
    linear = np.exp(choice.linear[best.model].logs[held_out])
    probabilities = (np.concatenate(best.means) + linear) / 2
    return rank_labels(choice.rows.select(held_out), probabilities)


def title_of(best: Trial, evaluation: Mapping[str, Any]) -> str:
    """Return the title of the report: the chosen candidate and its accuracy."""
    accuracy = PERCENT.text(_score(evaluation, "task", "accuracy")["value"])
    name = _title(best)
    return f"{name[0].upper()}{name[1:]}: {accuracy}% accuracy"


def candidates_of(choice: Choice) -> list[dict[str, Any]]:
    """Return the scores of all candidates on rows that they were not trained on, best first."""
    return [
        {
            "candidate": trial.candidate.name,
            "model": trial.model,
            "method": trial.candidate.method,
            "folds": len(trial.logs),
            "rows": sum(map(len, trial.logs)),
            "accuracy": float(choice.hits(trial.logs).mean()),
            "brier": float(choice.brier(trial.logs).mean()),
        }
        for trial in choice.trials
    ]


def findings(
    choice: Choice,
    splits: Splits,
    labels: pandas.DataFrame,
    evaluation: Mapping[str, Any],
    calibration: Mapping[str, Any] | None,
    model: Path,
) -> list[str]:
    return [
        _model(choice.trials[0], len(splits.train), read_json(model / RUN)["settings"]["train"]),
        _accuracy(evaluation, splits.dev),
        *skipped_candidates(choice),
        _calibration(evaluation),
        _labels(labels),
        _refused(splits, calibration, model),
        _more_rows(choice),
        _alternatives(choice),
    ]


def _model(best: Trial, rows: int, train: Mapping[str, Any]) -> str:
    candidate, base = best.candidate, Path(best.model).name
    if candidate is LINEAR:
        return (
            f"Model: a linear classifier on the frozen embeddings of {base}, fitted on {rows:,} "
            "rows. The encoder is not trained."
        )
    if candidate is WITH_SETFIT:
        return f"Model: SetFit of {base}, trained on {rows:,} rows."
    how = "" if candidate.method == DEFAULT.method else f" with {candidate.name}"
    return (
        f"Model: {base}, fine-tuned{how} on {rows:,} rows from {STARTS[candidate.start]} (learning "
        f"rate {train['learning_rate']:g}, {plural(round(train['epochs']), 'epoch')})."
    )


def _score(
    evaluation: Mapping[str, Any], perspective: str, name: str, condition: str = "clean"
) -> dict[str, Any]:
    wanted = perspective, name, condition
    for score in evaluation["scores"]:
        if (score["perspective"], score["name"], score["condition"]) == wanted:
            return dict(score)
    return {"value": None}


def _with_interval(entry: Mapping[str, Any]) -> str:
    value = f"{PERCENT.text(entry['value'])}%"
    if entry["low"] is None:
        return value
    return f"{value} (95% CI {PERCENT.text(entry['low'])} to {PERCENT.text(entry['high'])})"


def _accuracy(evaluation: Mapping[str, Any], dev: Examples) -> str:
    most = max(Counter(dev.labels or ()).values()) / len(dev)
    return (
        f"Accuracy: {_with_interval(_score(evaluation, 'task', 'accuracy'))} on {len(dev):,} rows "
        "that were set aside. Always predicting the most frequent class: "
        f"{PERCENT.text(most)}%."
    )


def _calibration(evaluation: Mapping[str, Any]) -> str:
    before = _score(evaluation, "calibration", "ece_10")
    after = _score(evaluation, "calibration", "ece_10", "temperature")
    covered = _score(evaluation, "coverage", "coverage", "lac")["value"]
    if after["value"] is None or covered is None:
        return f"Calibration: ECE {_with_interval(before)} without temperature scaling."
    return (
        f"Calibration: ECE {_with_interval(after)} after temperature scaling, "
        f"{PERCENT.text(before['value'])}% before. Prediction sets at {ASKED} coverage contain "
        f"{PERCENT.text(covered)}% of the labels. Each half of the rows that were set aside is "
        "scored with the temperature and the threshold of the other half."
    )


def _labels(labels: pandas.DataFrame) -> str:
    other = labels[labels["label"] != labels["suggested"]]
    if not len(other):
        return f"Labels: none of the {len(labels):,} checked labels looks wrong."
    worst = "; ".join(
        f"row {line.row} {_quoted(line.text)} is {line.label}, suggested {line.suggested}"
        for line in other.head(SHOWN).itertuples()
    )
    return (
        f"Labels: another label is more probable for {len(other):,} of {len(labels):,} checked "
        f"training rows. Look at these first: {worst}."
    )


def _quoted(text: str) -> str:
    line = " ".join(str(text).split())
    return f'"{line[:CHARACTERS]}{"..." if len(line) > CHARACTERS else ""}"'


def _refused(splits: Splits, calibration: Mapping[str, Any] | None, model: Path) -> str:
    if calibration is None:
        return "Uncertain texts: not measured, because the model is not calibrated."
    if "sets" not in calibration:
        return (
            "Uncertain texts: not measured. The model has no prediction sets and no OOD detector, "
            f"which need {2 * LEAST_ROWS} rows that were set aside, and there are "
            f"{len(splits.dev)}."
        )
    dev = splits.dev
    pairs = None if dev.text_pair is None else list(dev.text_pair)
    predictions = Classifier.load(model)(list(dev.text), pairs)
    coverage = next(iter(calibration["sets"]["thresholds"]))
    unclear = [
        i
        for i, prediction in enumerate(predictions)
        if prediction.set is not None and len(prediction.set) != 1
    ]
    odd = [i for i, prediction in enumerate(predictions) if prediction.anomalous]
    quoted = "; ".join(_quoted(dev.text[i]) for i in unclear[:SHOWN])
    alarms = 100 * calibration["anomaly"]["false_alarms"]
    return (
        f"Uncertain texts: {len(unclear)} of {len(dev)} set-aside texts have no single class at "
        f"{100 * float(coverage):.0f}% coverage{f', for example {quoted}' if quoted else ''}. "
        f"OOD detection: {len(odd)} look unlike the training texts (the detector is set to flag "
        f"{alarms:.0f}% of in-distribution texts)."
    )


def _more_rows(choice: Choice) -> str:
    best = choice.trials[0]
    if not choice.half:
        return "More rows: not measured within the budget. Use a larger --budget."
    count = len(choice.half)
    low, high = choice.hits(choice.half), choice.hits(best.logs[:count])
    rows = round(len(choice.rows) * (1 - 1 / PARTS))
    gain = high.mean() - low.mean()
    interval = _interval(high.astype(float), low.astype(float), PERCENT)
    before, after = PERCENT.text(low.mean()), PERCENT.text(high.mean())
    change = f"changes accuracy from {before}% to {after}%"
    if before == after:
        change = f"does not change accuracy ({after}%)"
    return (
        f"More rows: training on {rows:,} rows in place of {rows // 2:,} {change} "
        f"({PERCENT.text(gain, signed=True)} points, 95% CI {interval}), measured on "
        f"{len(high):,} other training rows ({plural(count, 'fold')})."
    )


def _alternatives(choice: Choice) -> str:
    best = choice.trials[0]
    count = len(best.logs)
    parts = []
    for trial in choice.trials[1:]:
        if trial.candidate in SIMPLE:
            shared = min(count, len(trial.logs))
            mine, other = (choice.brier(item.logs[:shared]) for item in (best, trial))
            interval = _interval(mine, other, BRIER)
            parts.append((other.mean(), mine.mean(), _title(trial), interval))
    if not parts:
        return "Alternatives: none was measured within the budget. Use a larger --budget."
    other, mine, name, interval = min(parts, key=lambda part: part[0] - part[1])
    return (
        f"Alternatives: {name} is the best simpler candidate. Its Brier score is "
        f"{BRIER.text(other)}, that of the chosen candidate {BRIER.text(mine)} "
        f"({BRIER.text(mine - other, signed=True)}, 95% CI {interval}; lower is better)."
    )


def skipped_candidates(choice: Choice) -> list[str]:
    """Return a finding if candidates were not trained because the time was too short."""
    if not choice.skipped:
        return []
    every = len(choice.trials) + choice.skipped
    return [
        f"Budget: candidates trained: {len(choice.trials)} of {every}. A larger --budget may give "
        "a better model."
    ]


def _title(trial: Trial) -> str:
    return f"{trial.candidate.name} ({Path(trial.model).name})"


def _interval(first: FloatArray, second: FloatArray, unit: Unit) -> str:
    result = mean_difference_interval(first, second, resamples=RESAMPLES, seed=0)
    if result.low is None or result.high is None:
        return "not known: too few rows"
    return f"{unit.text(result.low, signed=True)} to {unit.text(result.high, signed=True)}"
