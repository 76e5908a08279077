"""Mean ranks: where a column stands among the others, each perspective with one vote."""

from __future__ import annotations

from statistics import fmean

from scipy.stats import rankdata

from temper.display.cells import ScoreKey
from temper.display.records import ScoreRecord
from temper.functional.scores import facts
from temper.report.derived import RANK, Scores, views

COLUMNS = 3
"""Columns from which on a rank says more than the sign of a difference."""


def add_mean_rank(scores: Scores) -> None:
    """Add each run's mean rank among the runs of its seed; 1 is best, equal scores share a rank.

    The leading scores of a perspective (each set, attack and size) are ranked one by one and their
    ranks averaged, then the perspectives are averaged: an attack at ten radii counts no more than
    calibration. Scores that a run of the seed lacks are left out for all of them.

    Args:
        scores: Collected scores of three columns or more; changed in place. Call before means over
            sets are added.

    References:
        Demšar, "Statistical Comparisons of Classifiers over Multiple Data Sets", 2006, Section 3.2.
    """
    columns = list(dict.fromkeys(column for column, _ in scores.places))
    if len(columns) < COLUMNS:
        return
    for seed in sorted({seed for _, seed in scores.places}):
        places = [(column, seed) for column in columns]
        if any(place not in scores.places for place in places):
            continue
        votes: dict[str, list[list[float]]] = {}
        for key, at in scores.values.items():
            values = [at[place].value if place in at else None for place in places]
            known = [value for value in values if value is not None]
            if (
                views().of(key.perspective).ranked
                and views().of(key.perspective).is_lead(key, scores.metric)
                and len(known) == len(places)
            ):
                sign = -1.0 if _higher(key, scores.metric) else 1.0
                ranks = rankdata([sign * value for value in known])
                votes.setdefault(key.perspective, []).append([float(rank) for rank in ranks])
        if not votes:
            continue
        means = [
            fmean(fmean(ranks[number] for ranks in each) for each in votes.values())
            for number in range(len(places))
        ]
        for place, mean in zip(places, means, strict=True):
            key = ScoreKey(RANK.name, "", "clean", RANK.leads)
            record = ScoreRecord(
                perspective=RANK.name, set="", name=RANK.leads, value=mean, higher_is_better=False
            )
            scores.add(key, place, record)


def _higher(key: ScoreKey, metric: str) -> bool:
    """Tell a leading score's direction; an area has that of the metric."""
    name = metric if key.name == "area" else key.name
    return facts(name).higher_is_better is True
