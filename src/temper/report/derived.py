"""Scores derived from several sets or methods: means, average relative improvement, mean rank.

They are computed for each run, so that paired statistics over seeds apply. A *column* of a report
is a method (or configuration) with its runs; the *reference* is the column that others are compared
with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from statistics import fmean
from typing import Any

from scipy.stats import rankdata

from temper.display.cells import ScoreKey
from temper.display.records import ScoreRecord
from temper.display.views import Heading, View
from temper.display.wording import listed, title
from temper.evaluation.perspectives import perspectives
from temper.functional.intervals import average_relative_improvement
from temper.functional.scores import ScoreFacts, add_scores, facts
from temper.functional.units import Unit

# Column and seed.
RunId = tuple[str, int]


SUMMARY = View(
    name="summary",
    title="Average relative improvement",
    order=0,
    heading=Heading.COMPARISON,
    explained="The fraction of the baseline's distance to a perfect score that a method closes, "
    "averaged over task, shift, attacks, OOD detection and calibration.",
    leads="relative_improvement",
    sums_up=lambda rows: [row for row in rows if not row.key.set],
    words=lambda key: view_of(key.set).title_in_text if key.set else "mean of the parts",
    judged=False,
)
AFTER = replace(
    SUMMARY,
    name="summary_after",
    title="Average relative improvement, with post-hoc methods",
    order=1,
    explained="The same, with temperature scaling and a Mahalanobis detector for every method: "
    "post-hoc methods that any trained model can have.",
)
ALL_IN = replace(
    SUMMARY,
    name="summary_all_in",
    title="Average relative improvement, with post-hoc methods over the baseline without",
    order=2,
    explained="Every method with temperature scaling and a Mahalanobis detector, compared with the "
    "baseline without them: the gain for a user who has neither today.",
)
RANK = View(
    name="rank",
    title="Mean rank",
    order=3,
    heading=Heading.COMPARISON,
    explained="A method's rank among the compared ones, averaged over perspectives; 1 is best.",
    leads="mean_rank",
    words=lambda key: f"{title(key.name)} over the perspectives",
    judged=False,
)
add_scores(
    ScoreFacts("relative_improvement", "Relative improvement", True, None, "", Unit(1.0, 1, "%")),
    ScoreFacts(
        "mean_rank", "Mean rank", False, 1.0, "no score is common to all methods", Unit(1.0, 2, "")
    ),
)


def views() -> dict[str, View]:
    """Return name -> group of scores in the order of reports: derived ones, and perspectives."""
    return _views(tuple(perspectives().values()))


@cache
def _views(known: tuple[View, ...]) -> dict[str, View]:
    every = sorted([SUMMARY, AFTER, ALL_IN, RANK, *known], key=lambda view: view.order)
    return {view.name: view for view in every}


def view_of(name: str) -> View:
    """Return the view of a perspective, or a default view if the perspective is unknown."""
    return views().get(name) or View(name=name, title=name, leads="")


@dataclass
class Scores:
    """All scores of all runs.

    Args:
        values: Score -> run -> record.
        means: Score that is a mean over sets -> the averaged scores.
    """

    metric: str
    runs: list[RunId]
    values: dict[ScoreKey, dict[RunId, ScoreRecord]] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    means: dict[ScoreKey, list[ScoreKey]] = field(default_factory=dict)

    def add(self, key: ScoreKey, run: RunId, record: ScoreRecord) -> bool:
        """Add a run's score, unless the run has it; return whether it was added."""
        records = self.values.setdefault(key, {})
        return records.setdefault(run, record) is record

    def put(self, key: ScoreKey, run: RunId, value: float | None, **facts: Any) -> None:
        self.add(key, run, ScoreRecord(**asdict(key), value=value, **facts))

    def common(self, perspective: str, condition: str = "clean") -> list[ScoreKey]:
        """Return the primary scores of a perspective on all sets that every run has a value for.

        Means over different sets cannot be compared. So a set that one run lacks is left out for
        all runs, with a notice. A run whose score is undefined on every set (a collapsed model)
        does not count, and gets no mean.
        """
        view = view_of(perspective)
        name = view.lead(self.metric)
        keys = [
            key
            for key in self.values
            if (key.perspective, key.name, key.condition) == (perspective, name, condition)
        ]
        kept = []
        how = "" if condition == "clean" else f" {view.condition(condition)}"
        undefined = {
            key: {run for run, record in self.values[key].items() if record.value is None}
            for key in keys
        }
        applicable = [
            run for run in self.runs if any(run not in runs for runs in undefined.values())
        ]
        for key in keys:
            lacking = [
                run
                for run in applicable or self.runs
                if run not in self.values[key] or run in undefined[key]
            ]
            if not lacking:
                kept.append(key)
                continue
            who = listed([f"{column} (seed {seed})" for column, seed in lacking])
            what = f"{view.title}: set {key.set!r} is left out of the means{how}"
            note = f"{what}; {who} {'lacks' if len(lacking) == 1 else 'lack'} it."
            if note not in self.notices:
                self.notices.append(note)
        return kept


def _mean(records: Iterable[ScoreRecord]) -> float | None:
    values = [record.value for record in records]
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _effective(records: Sequence[ScoreRecord]) -> int | None:
    """Return the effective number of rows of an unweighted mean over sets; None if unknown."""
    counts = [record.n if record.fewest is None else record.fewest for record in records]
    known = [count for count in counts if count]
    # The variance of a mean of G sets is that of one row times sum(1 / n) / G^2.
    return int(len(known) ** 2 / sum(1 / count for count in known)) if known else None


def add_set_means(scores: Scores) -> None:
    """Add unweighted means over the sets of each perspective that has several.

    Each OOD detector has a separate mean, and so has calibration before and after scaling.
    """
    for view in [view for view in views().values() if view.averaged]:
        named = (view.name, view.lead(scores.metric))
        kinds = [key.condition for key in scores.values if (key.perspective, key.name) == named]
        for condition in dict.fromkeys(kinds):
            keys = scores.common(view.name, condition)
            if len(keys) < 2:
                continue
            key = replace(keys[0], set=f"mean of {len(keys)} sets")
            scores.means[key] = keys
            for run in scores.runs:
                records = [scores.values[one][run] for one in keys]
                value = _mean(records)
                scores.put(
                    key,
                    run,
                    value,
                    higher_is_better=records[0].higher_is_better,
                    n=sum(record.n or 0 for record in records) or None,
                    fewest=_effective(records),
                    reason=records[0].reason if value is None else None,
                )


def add_relative_improvement(scores: Scores, reference: str) -> None:
    """Add the average relative improvement of each run over the reference, and its parts.

    A part is a perspective. Its score is the run's mean over sets, and for the reference also over
    seeds; `average_relative_improvement` has the formula. If the runs were evaluated with post-hoc
    methods (`View.without_training`: temperature scaling, an OOD detector on hidden states), it is
    added twice more: with these methods for all columns, and for all except the reference.

    Nothing is added unless another column has a run at one of the reference's seeds. Call it before
    `add_set_means`.

    References:
        RoAST (arXiv 2312.04032), Section 5.1; UEGR (arXiv 2503.16550), Table III.
    """
    reference_seeds = {seed for column, seed in scores.runs if column == reference}
    if not any(column != reference and seed in reference_seeds for column, seed in scores.runs):
        return
    clean = {view.name: "clean" for view in views().values() if view.improves}
    parts = [name for name in clean if scores.common(name)]
    absent = [view_of(name).title_in_text for name in clean if name not in parts]
    if parts and absent:
        scores.notices.append(
            f"The average relative improvement is over the other parts, without {listed(absent)}: "
            "no set of that kind was given, or none that every run was evaluated on."
        )
    clean = {name: clean[name] for name in parts}
    _add_improvement(scores, reference, SUMMARY, clean, clean)
    free = {name: view_of(name).without_training or "clean" for name in parts}
    if free != clean and all(scores.common(*part) for part in free.items()):
        _add_improvement(scores, reference, AFTER, free, free)
        _add_improvement(scores, reference, ALL_IN, free, clean)


def _add_improvement(
    scores: Scores,
    reference: str,
    view: View,
    conditions: Mapping[str, str],
    over: Mapping[str, str],
) -> None:
    """Add the improvement, given part -> condition of the runs and of the reference (``over``)."""
    sets = {name: scores.common(name, how) for name, how in conditions.items()}
    parts = {name: _means(scores, keys) for name, keys in sets.items()}
    start: dict[str, float | None] = {}
    for part, how in over.items():
        means = _means(scores, scores.common(part, how))
        known = [mean for run, mean in means.items() if run[0] == reference and mean is not None]
        start[part] = fmean(known) if known else None
    best = {part: facts(view_of(part).lead(scores.metric)).perfect for part in parts}
    perfect = {part: value for part, value in best.items() if value is not None}
    for run in scores.runs if parts else ():
        scores_of_parts = {part: means[run] for part, means in parts.items()}
        improvement = average_relative_improvement(scores_of_parts, start, perfect=perfect)
        reason = " ".join(improvement.reasons)
        rows = {
            part: _effective([scores.values[key][run] for key in keys])
            for part, keys in sets.items()
        }
        known = [number for number in rows.values() if number is not None]
        # A mean over fewer parts would not be comparable.
        whole = None if None in scores_of_parts.values() else improvement.value
        values = {"": whole, **{part: improvement.parts.get(part) for part in parts}}
        fewest = {"": min(known, default=None), **rows}
        for part, value in values.items():
            key = ScoreKey(view.name, part, "clean", view.leads)
            why = reason if value is None else None
            scores.put(key, run, value, higher_is_better=True, fewest=fewest[part], reason=why)


def _means(scores: Scores, keys: Sequence[ScoreKey]) -> dict[RunId, float | None]:
    return {run: _mean(scores.values[key][run] for key in keys) for run in scores.runs}


COLUMNS = 3
"""Minimum number of columns for mean ranks; of two, one is better, which is shown elsewhere."""


def add_mean_rank(scores: Scores) -> None:
    """Add each run's mean rank among the runs of the same seed; 1 is best, ties share a rank.

    Every primary score (of each set, attack and size) has a rank. Ranks are averaged within each
    perspective, then over perspectives: an attack at ten radii has the same weight as calibration.
    Scores that a run of the seed lacks are left out. Nothing is added for fewer than three columns.
    Call it before `add_set_means`.

    References:
        Demšar, "Statistical Comparisons of Classifiers over Multiple Data Sets", 2006, Section 3.2.
    """
    columns = list(dict.fromkeys(column for column, _ in scores.runs))
    if len(columns) < COLUMNS:
        return
    for seed in sorted({seed for _, seed in scores.runs}):
        indices = [(column, seed) for column in columns]
        if any(run not in scores.runs for run in indices):
            continue
        votes: dict[str, list[list[float]]] = {}
        for key, records in scores.values.items():
            view = view_of(key.perspective)
            if not (view.judged and view.ranked and view.is_lead(key, scores.metric)):
                continue
            values = [records[run].value if run in records else None for run in indices]
            known = [value for value in values if value is not None]
            if len(known) == len(indices):
                # The area under a curve has the direction of the metric.
                name = scores.metric if key.name == "area" else key.name
                sign = -1.0 if facts(name).higher_is_better is True else 1.0
                ranks = rankdata([sign * value for value in known])
                votes.setdefault(key.perspective, []).append([float(rank) for rank in ranks])
        if not votes:
            continue
        means = [
            fmean(fmean(ranks[number] for ranks in rankings) for rankings in votes.values())
            for number in range(len(indices))
        ]
        for run, mean in zip(indices, means, strict=True):
            key = ScoreKey(RANK.name, "", "clean", RANK.leads)
            scores.put(key, run, mean, higher_is_better=False)
