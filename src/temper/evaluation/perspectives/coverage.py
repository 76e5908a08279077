"""Coverage: do prediction sets contain the label at the nominal rate, and how large are they?

The sets are made by split conformal prediction at a coverage of 90%. A hash of the text splits dev
into two folds, and rows of a fold, also of other sets, get the threshold of the other fold. So the
threshold of a row never depends on this row or an equal text. On dev the coverage is then the
nominal one for any model, and models differ in the size of the sets. On other sets it is not
guaranteed: lower coverage is an effect of the shift or attack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from temper.display.cells import Cell, Comparison, Row, ScoreKey
from temper.display.charts import Figure, labeled_bars
from temper.display.folders import Source
from temper.display.records import Parameters
from temper.display.views import Heading
from temper.display.wording import listed
from temper.evaluation.perspectives.calibration import fold_numbers
from temper.evaluation.perspectives.registry import LABELED, Perspective
from temper.evaluation.rows import Block, Condition
from temper.evaluation.scoring import ScoreEntry, Scoring
from temper.functional.conformal import (
    at_labels,
    chance_coverage,
    lac_scores,
    least_rows,
    prediction_sets,
)
from temper.functional.proportions import GroupProportions, Proportion
from temper.functional.resampling import FloatArray, IntegerArray
from temper.functional.scores import NO_ROWS, ScoreFacts
from temper.functional.thresholds import Judged, Thresholds
from temper.functional.units import Unit

NOMINAL = 0.9
"""Nominal coverage: fraction of texts whose prediction set should contain the label."""
ASKED = f"{100 * NOMINAL:.0f}%"
CLASSES = Unit(1.0, 2, "classes")
ATTACKED = ("embedding_attack", "text_attack")
"""Perspectives whose attacked rows are also scored, if they were measured."""
LAC = "lac"
"""Condition of rows without attack, named after the nonconformity score."""
ENOUGH = 10
"""Minimum number of rows of a class or group for worst-class or worst-group coverage."""
MOST = 20
"""Maximum number of classes or groups with separate scores; else only the worst is scored."""
NOWHERE = "Coverage is not significantly below the nominal rate on any set."
PARTS = {"class": "class, by its number,", "group": "group of the data"}


@dataclass(frozen=True)
class _Sets:
    """The prediction sets of a block's n rows, for any thresholds.

    Args:
        thresholds: Computes each row's threshold, also on resamples.
        scores: Nonconformity score of each class, [n, C].
        labels: Class indices, [n].
    """

    thresholds: Thresholds
    scores: FloatArray
    labels: IntegerArray

    def sizes(self, limit: float, rows: IntegerArray) -> FloatArray:
        return np.asarray(prediction_sets(self.scores[rows], limit).sum(axis=1), dtype=np.float64)

    def covers(self, limit: float, rows: IntegerArray) -> FloatArray:
        """Return 1 for each of ``rows`` whose set contains the label, else 0."""
        scores = at_labels(self.scores[rows], self.labels[rows])
        return prediction_sets(scores, limit).astype(np.float64)

    def fraction(self, rows: IntegerArray, groups: IntegerArray | None = None) -> Judged:
        """Return the coverage of ``rows``, or the lowest over ``groups``, as a statistic."""
        scores = at_labels(self.scores, self.labels)
        covered = prediction_sets(scores, self.thresholds.of_rows()).astype(np.float64)[rows]
        closed = (
            Proportion(covered) if groups is None else GroupProportions(covered, groups, least=True)
        )
        return Judged(self.thresholds, self.covers, rows, closed, groups)


def score(scoring: Scoring) -> list[ScoreEntry]:
    """Score the prediction sets on dev, shift and adversarial sets, and under attacks."""
    dev = scoring.clean
    result: list[ScoreEntry] = []
    for block in scoring.of(*LABELED, *ATTACKED):
        attacked = block.condition.perspective in ATTACKED
        condition = Condition("coverage", block.condition.set, LAC)
        if attacked:
            how = block.condition
            condition = Condition("coverage", how.set, how.name, how.parameters)
        try:
            sets = _sets(dev, block)
        except ValueError as error:
            message = str(error).partition(". ")[0]
            result.append(scoring.undefined(condition, "set_size", reason=message, rows=len(block)))
            continue
        every = np.arange(len(block))
        parts: list[tuple[Condition, str, Judged]] = [
            (condition, "set_size", Judged(sets.thresholds, sets.sizes, every)),
            (condition, "coverage", sets.fraction(every)),
        ]
        if not attacked:
            parts += _by_part(condition, block, sets)
        drawn = rows_drawn(dev, block)
        for part, name, judged in parts:
            rows = len(judged.rows)
            result.append(scoring.entry(part, name, statistic=judged, rows=rows, drawn=drawn))
    return result


def _by_part(
    condition: Condition, block: Block, sets: _Sets
) -> Iterator[tuple[Condition, str, Judged]]:
    """Yield (condition, score, statistic) of each class and group, and of the worst ones."""
    parts = {"class": np.array([f"{int(label)}" for label in block.label])}
    if block.group is not None:
        parts["group"] = np.array([name or "" for name in block.group])
    for what, names in parts.items():
        known, indices, rows = np.unique(names, return_inverse=True, return_counts=True)
        for index, name in enumerate(known.tolist()):
            if name and len(known) <= MOST:
                value = int(name) if what == "class" else name
                part = replace(condition, parameters=Parameters({what: value}))
                yield part, "coverage", sets.fraction(np.flatnonzero(indices == index))
        enough = np.flatnonzero((rows >= ENOUGH) & (known != ""))
        kept = np.flatnonzero(np.isin(indices, enough))
        groups = np.searchsorted(enough, indices[kept]).astype(np.int64)
        yield condition, f"worst_{what}_coverage", sets.fraction(kept, groups)


def _sets(dev: Block, block: Block) -> _Sets:
    if not dev.classifies:
        raise ValueError("a regression has no classes to predict sets of")
    if block.probabilities.shape[1] != dev.probabilities.shape[1]:
        raise ValueError("its classes differ from those of dev")
    scores = at_labels(lac_scores(dev.probabilities), dev.label.astype(np.int64))
    thresholds = thresholds_of_dev(scores, dev, block, coverage=NOMINAL)
    return _Sets(thresholds, lac_scores(block.probabilities), block.label.astype(np.int64))


def thresholds_of_dev(
    scores: FloatArray, dev: Block, block: Block, *, coverage: float
) -> Thresholds:
    """Return the conformal thresholds of a block's rows, which depend on resamples of dev.

    ``scores`` [n] are the nonconformity scores of dev. Rows are in two folds by a hash of the text;
    a row gets the threshold of dev's other fold. A resample draws dev's rows first and then, unless
    ``block`` is dev or an attack on it, the block's rows.
    """
    indices = len(dev) + np.arange(len(block))
    if block.condition.set == dev.condition.set:
        indices = np.searchsorted(dev.index, block.index)
    folds = fold_numbers(dev.row, seed=0)
    return Thresholds(scores, folds, coverage, indices, fold_numbers(block.row, seed=0))


def rows_drawn(dev: Block, block: Block) -> int:
    """Return the number of rows that a resample draws; see `thresholds_of_dev`."""
    return len(dev) + (0 if block.condition.set == dev.condition.set else len(block))


def details(keys: Sequence[ScoreKey]) -> list[ScoreKey]:
    """Choose the scores of single classes and groups, which only figures show."""
    return [key for key in keys if set(PARTS) & set(key.parameters)]


def on_dev(rows: Sequence[Row]) -> list[Row]:
    """Choose the prediction sets of dev, whose coverage is the nominal one."""
    return [row for row in rows if (row.key.set, row.key.condition) == ("dev", LAC)]


def figures(source: Source, comparison: Comparison) -> list[Figure]:
    """Draw coverage by set and attack, by class and by group, and the size of the sets."""
    result = comparison.of("coverage", "coverage")
    drawn = labeled_bars(
        comparison,
        of_whole_sets(comparison),
        "Coverage of prediction sets",
        f"Fraction of texts whose set (LAC) contains the label; the nominal rate is {ASKED}, which "
        "dev has by construction.",
    )
    for part, words in PARTS.items():
        drawn += labeled_bars(
            comparison,
            {
                f"{row.key.set}, {part} {row.key.parameters[part]}": row
                for row in result
                if part in row.key.parameters
            },
            f"Coverage by {part}",
            f"Fraction of the texts of each {words} whose set (LAC) contains the label; the "
            f"nominal rate of {ASKED} is over all texts and not guaranteed for a part of them.",
        )
    sizes = [row for row in comparison.of("coverage", "set_size") if row.key.condition == LAC]
    return drawn + labeled_bars(
        comparison,
        {row.key.set: row for row in sizes},
        "Size of prediction sets",
        "Mean number of classes in a set; fewer is better if the coverage is at the nominal rate.",
    )


def of_whole_sets(comparison: Comparison) -> dict[str, Row]:
    """Return name of a set and its attack -> coverage over all of its rows."""
    return {
        _place(row): row
        for row in comparison.of("coverage", "coverage")
        if not set(PARTS) & set(row.key.parameters)
    }


def in_words(comparison: Comparison) -> str:
    """Describe the coverage of dev, the lowest coverage, and the sets on which coverage breaks.

    It breaks if it is lower than sampling explains, both of the set and of half of dev, on which
    the thresholds are computed.
    """
    whole = of_whole_sets(comparison)
    sizes = on_dev(comparison.of("coverage", "set_size"))
    if "dev" not in whole or not sizes:
        return ""

    def say(column: str) -> str:
        covered = {
            name: mean
            for name, row in whole.items()
            if (mean := row.cells[column].mean) is not None
        }
        if "dev" not in covered:
            return ""
        fractions = {name: whole[name].value_text(column) for name in covered}
        least = min(covered, key=lambda name: covered[name])
        elsewhere = "" if least == "dev" else f", least often on {least} ({fractions[least]})"
        known = min(whole["dev"].cells[column].examples, default=0) // 2
        broken = [
            f"{name} ({fractions[name]})"
            for name in covered
            if _breaks(whole[name].cells[column], known)
        ]
        verdict = f"Coverage breaks on {listed(broken)}." if broken else NOWHERE
        return (
            f"The prediction set contains the label for {fractions['dev']} of dev, with "
            f"{sizes[0].value_text(column)} per set{elsewhere}. {verdict}"
        )

    return comparison.said(say)


def _breaks(cell: Cell, known: int) -> bool:
    """Return whether the coverage is significantly below the nominal rate (95%)."""
    if cell.mean is None or known < least_rows(NOMINAL):
        return False
    return cell.mean < chance_coverage(known, max(cell.examples), coverage=NOMINAL)[0]


def _place(row: Row) -> str:
    attack = "" if row.key.condition == LAC else COVERAGE.attack(row.key)
    return ", ".join(part for part in (row.key.set, attack) if part)


COVERAGE = Perspective(
    name="coverage",
    title="Prediction sets",
    order=112,
    heading=Heading.CALIBRATION,
    explained="A prediction set has all classes that may be the right one, so many that the "
    f"right one is among them for {ASKED} of texts like dev's; the fewer, the more the model "
    "knows.",
    leads="set_size",
    sums_up=on_dev,
    conditions={LAC: "LAC"},
    minor=details,
    says=in_words,
    figures=figures,
    judged=False,
    rescores=LABELED,
    summary=(
        "coverage and mean size of conformal prediction sets at 90%: for each dataset, class and "
        "group, and under each attack that is run"
    ),
    scores=(
        ScoreFacts("set_size", "Mean size of the sets", False, NOMINAL, NO_ROWS, CLASSES),
        ScoreFacts("coverage", "Coverage", None, None, NO_ROWS),
        ScoreFacts(
            "worst_class_coverage",
            "Worst class\u2019s coverage",
            None,
            None,
            "no class has enough rows",
        ),
        ScoreFacts(
            "worst_group_coverage",
            "Worst group\u2019s coverage",
            None,
            None,
            "no group has enough rows",
        ),
    ),
    score=score,
    left_out="adds a score for each set, class and group",
)
