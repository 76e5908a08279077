"""Print one table of all kept studies: method, training set, scores and cost.

    python -m reproduction.leaderboard [--write docs/leaderboard.md]

A score is the mean over the seeds with its 95% t interval; over several sets, of their mean.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas
from scipy import stats

from reproduction.document import table_command
from temper.display.wording import pipe_table

RESULTS = Path("reproduction/results")
SCORES = {
    "accuracy": ("task", "clean", ("accuracy",)),
    "shift": ("shift", "clean", ("accuracy",)),
    "adversarial": ("adversarial", "clean", ("accuracy",)),
    "ECE": ("calibration", "clean", ("ece_10",)),
    "ECE, scaled": ("calibration", "temperature", ("ece_10",)),
    "OOD AUROC": ("anomaly", None, ("auroc",)),
}
"""Heading -> perspective, condition and names of a score."""
DETECTORS = ("mahalanobis", "max_softmax")
"""Conditions of the OOD score, the first that a study has."""


def rows(folder: Path) -> list[list[str]]:
    """Return the lines of a study: its name, the method, the scores, the cost and the seeds."""
    record = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    scores = pandas.read_parquet(folder / "scores.parquet")
    costs = record.get("cost") or {}
    lines = []
    for column in dict.fromkeys(each["name"] for each in record["columns"]):
        own = scores[scores["column"] == column]
        if own.empty:
            continue
        cost = (costs.get(column) or {}).get("over_reference")
        lines.append(
            [
                folder.parent.name,
                folder.name,
                f"`{column}`",
                *(_cell(own, *score) for score in SCORES.values()),
                "" if cost is None else f"{cost:.1f}x",
                str(own["seed"].nunique()),
            ]
        )
    return lines


def _cell(scores: pandas.DataFrame, perspective: str, condition: str | None, names: object) -> str:
    """Return the mean over seeds in percent, with its interval; empty if not measured."""
    chosen = scores[(scores["perspective"] == perspective) & scores["name"].isin(names)]
    chosen = chosen.dropna(subset=["value"])
    if condition is None:
        condition = next((each for each in DETECTORS if (chosen["condition"] == each).any()), "")
    chosen = chosen[chosen["condition"] == condition]
    if chosen.empty:
        return ""
    means = 100 * chosen.groupby("seed")["value"].mean().to_numpy()
    if len(means) < 2:
        return f"{means.mean():.1f}"
    reach = stats.t.ppf(0.975, len(means) - 1) * np.std(means, ddof=1) / np.sqrt(len(means))
    return f"{means.mean():.1f} ± {reach:.1f}"


def table() -> str:
    """Return the table."""
    folders = sorted(file.parent for file in RESULTS.glob("*/*/study.json"))
    headings = ("study", "model and data", "method", *SCORES, "cost of a step", "seeds")
    return pipe_table(headings, [line for folder in folders for line in rows(folder)])


if __name__ == "__main__":
    table_command(__doc__, table)
