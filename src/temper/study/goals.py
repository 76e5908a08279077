"""Goals of a search: weighted parts, and their measurement on a validation fold."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Literal

from temper.checkpoints.folder import read_json
from temper.errors import DataError, SettingError, unknown

ACCURACY, CALIBRATION, ROBUSTNESS = "accuracy", "calibration", "robustness"
PARTS: Final[Mapping[str, Mapping[str, Any]]] = {
    ACCURACY: {"task": {}},
    CALIBRATION: {"calibration": {}},
    ROBUSTNESS: {
        "embedding_attack": {"fgm": False, "pgd": {"steps": 3}, "radii": [0.25]},
        "token_corruption": {"kinds": ["random"], "rates": [0.1]},
    },
}
"""Part of a goal -> perspective -> its settings on a validation fold."""
GOALS: Final[Mapping[str, Mapping[str, float]]] = {
    "accuracy": {ACCURACY: 1.0},
    "robust": {ROBUSTNESS: 1.0},
    "calibrated": {CALIBRATION: 1.0},
    "balanced": dict.fromkeys(PARTS, 1.0),
}
ATTACKED: Final = 100
"""Attacked rows per fold, and of the final comparison by default."""
LEAST_ERROR: Final = 0.01
"""Lower bound of the baseline's error in relative improvements."""


def goal_weights(goal: str) -> dict[str, float]:
    """Parse ``--goal``, a name of `GOALS` or weights; return part -> weight, with sum 1.

    Example:
        >>> goal_weights("accuracy=3,calibration=1")
        {'accuracy': 0.75, 'calibration': 0.25}
    """
    if "=" not in goal:
        if goal not in GOALS:
            raise SettingError(
                f"{unknown('goal', goal, GOALS)} Or give weights: --goal accuracy=2,calibration=1."
            )
        given = dict(GOALS[goal])
    else:
        given = {}
        for text in goal.split(","):
            name, _, number = text.partition("=")
            try:
                given[name.strip()] = float(number)
            except ValueError:
                raise SettingError(
                    f"--goal takes weights as in accuracy=2,calibration=1, got {text!r}."
                ) from None
    for name, weight in given.items():
        if name not in PARTS:
            raise SettingError(unknown("part of a goal", name, PARTS))
        if not 0 < weight < float("inf"):
            raise SettingError(f"--goal: the weight of {name!r} must be above 0, got {weight:g}.")
    return {name: weight / sum(given.values()) for name, weight in given.items()}


def fold_evaluation(parts: Collection[str]) -> dict[str, Any]:
    """Return the evaluation settings of a validation fold, the table ``evaluate``."""
    measured = {name: settings for part in parts for name, settings in PARTS[part].items()}
    sections = {name: settings for name, settings in measured.items() if settings}
    limit = {"attack_rows": ATTACKED} if ROBUSTNESS in parts else {}
    return {"perspectives": list(measured), **limit, **sections}


def part_scores(evaluation: Path, parts: Collection[str]) -> dict[str, float]:
    """Read the scores of the goal's parts, and always accuracy, from an evaluation; 1 is perfect.

    Accuracy is the task's metric; for completions the geometric mean token probability
    ``exp(-loss)``. Calibration is one minus half the Brier score, after cross-fitted temperature
    scaling if possible. Robustness is the mean accuracy under PGD on embeddings and under random
    tokens. The Brier score is proper: unlike ECE, predicting the class frequencies does not
    optimize it.
    """
    content = read_json(evaluation / "scores.json")
    metric = content["task"]["metric"]

    def values(perspective: str, name: str, condition: str | None = None) -> list[float]:
        return [
            float(entry["value"])
            for entry in content["scores"]
            if (entry["perspective"], entry["name"]) == (perspective, name)
            and (condition is None or entry["condition"] == condition)
            and entry["value"] is not None
        ]

    result = {ACCURACY: values("task", metric)}
    if metric == "completion_loss":
        result[ACCURACY] = [math.exp(-loss) for loss in result[ACCURACY]]
    if CALIBRATION in parts:
        scaled = values("calibration", "brier", "temperature")
        brier = scaled or values("calibration", "brier", "clean")
        result[CALIBRATION] = [1 - value / 2 for value in brier]
    if ROBUSTNESS in parts:
        accuracies = [values(perspective, "accuracy") for perspective in PARTS[ROBUSTNESS]]
        result[ROBUSTNESS] = [fmean(part) for part in accuracies if part]
    for part, scores in result.items():
        if not scores:
            raise DataError(
                f"The part {part!r} of the goal has no score on a validation fold ({evaluation}). "
                "Pass more rows, or another --goal."
            )
    return {part: fmean(scores) for part, scores in result.items()}


def improvement(
    scores: Mapping[str, float], reference: Mapping[str, float], weights: Mapping[str, float]
) -> float:
    """Return the mean fraction of the baseline's error that is removed.

    ``sum_p w_p (s_p - r_p) / max(1 - r_p, 0.01)`` with weights that add up to 1, the average
    relative improvement of a report.

    Example:
        >>> improvement({"accuracy": 0.9}, {"accuracy": 0.8}, {"accuracy": 1.0})
        0.5
    """
    total = sum(
        weight * (scores[part] - reference[part]) / max(1 - reference[part], LEAST_ERROR)
        for part, weight in weights.items()
    )
    return round(total, 12)


_BUDGET = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|runs?)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Budget:
    """The budget of a search, including the final comparison.

    The amount is in seconds, or in plain fine-tunings on all rows.
    """

    amount: float
    unit: Literal["seconds", "runs"]

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Parse ``--budget``: a number above 0 with s, m, h or runs; else raise a `SettingError`.

        Example:
            >>> Budget.parse("30m"), Budget.parse("12runs")
            (Budget(amount=1800.0, unit='seconds'), Budget(amount=12.0, unit='runs'))
        """
        match = _BUDGET.fullmatch(text.strip().lower())
        if match is None or not float(match[1]):
            raise SettingError(
                f"--budget must be a time with its unit, such as 30m or 2h, got {text!r}. `temper "
                "tune` also takes a number of runs of plain fine-tuning, such as 12runs."
            )
        if match[2].startswith("run"):
            return cls(float(match[1]), "runs")
        return cls(float(match[1]) * _SECONDS[match[2]], "seconds")

    def text(self, amount: float) -> str:
        return f"{amount:.3g} runs" if self.unit == "runs" else f"{amount / 60:.3g} minutes"
