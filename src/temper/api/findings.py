"""Findings of `temper.fit` about a dataset, as sentences."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas

from temper.calibration.classifier import Classifier
from temper.data.examples import Splits
from temper.functional.intervals import LEAST_ROWS, mean_difference_interval
from temper.functional.resampling import FloatArray
from temper.functional.units import PERCENT, Unit
from temper.study.fit import PARTS, SIMPLE, Choice, Trial
from temper.study.wrong_labels import rank_labels

RESAMPLES: Final = 2000
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
    count = len(best.logs)
    linear = np.exp(np.concatenate(choice.linear_logs(best.model, count)))
    probabilities = (np.concatenate(best.means) + linear) / 2
    rows = choice.rows.select(np.concatenate(choice.folds[:count]))
    return rank_labels(rows, probabilities)


def candidates_of(choice: Choice) -> list[dict[str, Any]]:
    """Return the scores of all candidates on the held-out rows, the best first."""
    return [
        {
            "candidate": trial.candidate.name,
            "model": trial.model,
            "method": trial.candidate.method,
            **_scores(choice, trial.logs),
        }
        for trial in choice.trials
    ]


def _scores(choice: Choice, logs: list[FloatArray]) -> dict[str, Any]:
    labels = choice.labels(len(logs))
    right = np.concatenate(logs).argmax(axis=1) == labels
    return {
        "folds": len(logs),
        "rows": len(labels),
        "accuracy": float(right.mean()),
        "brier": float(choice.brier(logs).mean()),
    }


def findings(
    choice: Choice,
    splits: Splits,
    labels: pandas.DataFrame,
    evaluation: Mapping[str, Any],
    calibration: Mapping[str, Any] | None,
    model: Path,
) -> list[str]:
    return [
        _accuracy(evaluation, len(splits.dev)),
        _labels(labels),
        _refused(splits, calibration, model),
        _more_rows(choice),
        _alternatives(choice),
        *skipped_candidates(choice),
    ]


def _accuracy(evaluation: Mapping[str, Any], rows: int) -> str:
    (entry,) = (
        each
        for each in evaluation["scores"]
        if (each["perspective"], each["name"], each["condition"]) == ("task", "accuracy", "clean")
    )
    return (
        f"Accuracy: {100 * entry['value']:.1f}% (95% CI {100 * entry['low']:.1f} to "
        f"{100 * entry['high']:.1f}) on {rows:,} rows that were set aside."
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
        f"rows. Look at these first: {worst}."
    )


def _quoted(text: str) -> str:
    line = " ".join(str(text).split())
    return f'"{line[:CHARACTERS]}{"..." if len(line) > CHARACTERS else ""}"'


def _refused(splits: Splits, calibration: Mapping[str, Any] | None, model: Path) -> str:
    if calibration is None:
        return "Uncertain texts: not measured, because the model is not calibrated."
    if "sets" not in calibration:
        return (
            "Uncertain texts: not measured. Prediction sets and OOD detection need "
            f"{2 * LEAST_ROWS} rows that were set aside, and there are {len(splits.dev)}."
        )
    dev = splits.dev
    pairs = None if dev.text_pair is None else list(dev.text_pair)
    answers = Classifier.load(model)(list(dev.text), pairs)
    coverage = next(iter(calibration["sets"]["thresholds"]))
    unclear = [
        i for i, answer in enumerate(answers) if answer.set is not None and len(answer.set) != 1
    ]
    odd = [i for i, answer in enumerate(answers) if answer.anomalous]
    quoted = "; ".join(_quoted(dev.text[i]) for i in unclear[:SHOWN])
    return (
        f"Uncertain texts: {len(unclear)} of {len(dev)} set-aside texts have no single class at "
        f"{100 * float(coverage):.0f}% coverage{f', for example {quoted}' if quoted else ''}. "
        f"{len(odd)} look unlike the training texts (OOD)."
    )


def _more_rows(choice: Choice) -> str:
    best = choice.trials[0]
    if not choice.half:
        return "More rows: not measured within the budget. Give a larger --budget."
    count = len(choice.half)
    full = best.logs[:count]
    low, high = (
        np.concatenate(logs).argmax(axis=1) == choice.labels(count) for logs in (choice.half, full)
    )
    rows = round(len(choice.rows) * (1 - 1 / PARTS))
    gain = high.mean() - low.mean()
    interval = _interval(high.astype(float), low.astype(float), PERCENT)
    before, after = PERCENT.text(low.mean()), PERCENT.text(high.mean())
    change = f"changes accuracy from {before}% to {after}%"
    if before == after:
        change = f"does not change accuracy ({after}%)"
    return (
        f"More rows: training on {rows:,} rows in place of {rows // 2:,} {change} "
        f"({PERCENT.text(gain, signed=True)} points, 95% CI {interval}), measured on folds of the "
        "training rows."
    )


def _alternatives(choice: Choice) -> str:
    best = choice.trials[0]
    count = len(best.logs)
    parts = []
    for trial in choice.trials[1:]:
        if trial.candidate in SIMPLE:
            shared = min(count, len(trial.logs))
            mine, other = (choice.brier(each.logs[:shared]) for each in (best, trial))
            interval = _interval(mine, other, BRIER)
            parts.append((other.mean(), mine.mean(), _title(trial), interval))
    if not parts:
        return "Alternatives: none was measured within the budget. Give a larger --budget."
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
        f"Budget: only {len(choice.trials)} of {every} candidates were trained. A larger --budget "
        "may give a better model."
    ]


def _title(trial: Trial) -> str:
    return f"{trial.candidate.name} ({Path(trial.model).name})"


def _interval(first: FloatArray, second: FloatArray, unit: Unit) -> str:
    result = mean_difference_interval(first, second, resamples=RESAMPLES, seed=0)
    if result.low is None or result.high is None:
        return "not known: too few rows"
    return f"{unit.text(result.low, signed=True)} to {unit.text(result.high, signed=True)}"
