"""Groups: accuracy of each group of a labeled set, of the worst group, and the mean over groups.

The data names the groups, for example domains or heuristics. Unperturbed rows of dev, shift and
adversarial sets are scored. Worst group and unweighted mean include only groups of at least
`ENOUGH` rows. GLUE's score of MNLI is the mean over its two dev sets as groups.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from temper.display.cells import Comparison, ScoreKey
from temper.display.charts import Figure, condition_bars
from temper.display.folders import Source
from temper.display.views import Heading
from temper.display.wording import title
from temper.evaluation.perspectives.registry import LABELED, Perspective
from temper.evaluation.rows import Block
from temper.evaluation.scoring import ScoreEntry, Scoring
from temper.functional.intervals import Statistic
from temper.functional.proportions import GroupProportions, Proportion
from temper.functional.scores import ScoreFacts

ENOUGH = 10
"""Minimum number of rows of a group; in smaller groups one row is over 10% of the accuracy."""
TOO_FEW = "no group has enough rows"


def score(scoring: Scoring) -> list[ScoreEntry]:
    entries = []
    for block in scoring.of(*LABELED):
        if block.group is not None:
            entries += _set_entries(scoring, block, np.array([name or "" for name in block.group]))
    return entries


def _set_entries(scoring: Scoring, block: Block, groups: NDArray[np.str_]) -> list[ScoreEntry]:
    condition = replace(block.condition, perspective="groups")
    names = sorted(set(groups) - {""})
    if not block.classifies:
        reason = "a regression has no accuracy"
        total = int((groups != "").sum())
        return [
            scoring.undefined(
                replace(condition, name="worst"), "worst_group", reason=reason, rows=total
            )
        ]
    correct = {str(name): block.correct[groups == name] for name in names}
    enough = [name for name, right in correct.items() if len(right) >= ENOUGH]
    kept = np.isin(groups, enough)
    right, indices = block.correct[kept], np.searchsorted(enough, groups[kept])
    statistics: list[tuple[str, str, Statistic, int]] = [
        (name, "accuracy", Proportion(hits), len(hits)) for name, hits in correct.items()
    ]
    for name, score_name in (("worst", "worst_group"), ("mean", "mean_group")):
        if name == "worst" or len(enough) > 1:
            fractions = GroupProportions(right, indices, least=name == "worst")
            statistics.append((name, score_name, fractions, len(right)))
    return [
        scoring.entry(replace(condition, name=name), score_name, statistic=statistic, rows=count)
        for name, score_name, statistic, count in statistics
    ]


def words(key: ScoreKey) -> str:
    """Return the label of a score with the name of its group."""
    group = key.condition if key.name == "accuracy" else ""
    return ", ".join(part for part in (title(key.name), group, key.set) if part)


def figures(source: Source, comparison: Comparison) -> list[Figure]:
    """Draw the accuracy of every group of a set, and of its worst."""
    rows = [*comparison.of("groups", "accuracy"), *comparison.of("groups", "worst_group")]
    caption = "Accuracy of every group of the data, and of the worst; right is better."
    return condition_bars(
        comparison,
        rows,
        "Groups",
        caption,
        label=lambda row: (
            row.key.condition if row.key.name == "accuracy" else f"{row.key.condition} group"
        ),
    )


GROUPS = Perspective(
    name="groups",
    title="Groups",
    order=40,
    heading=Heading.ACCURACY,
    explained="The lowest accuracy over the groups of the data, for example genres.",
    gain="reaches {ours} on its worst group ({compared})",
    leads="worst_group",
    words=words,
    figures=figures,
    rescores=LABELED,
    summary="accuracy of each group of rows, of the worst group with at least 10 rows, and the "
    "mean over such groups",
    scores=(
        "accuracy",
        ScoreFacts(
            "worst_group", "Worst group\u2019s accuracy", True, 1.0, TOO_FEW, guessing="class"
        ),
        ScoreFacts(
            "mean_group", "Mean of the groups\u2019 accuracy", True, 1.0, TOO_FEW, guessing="class"
        ),
    ),
    score=score,
)
