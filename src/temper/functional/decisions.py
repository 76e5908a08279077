"""Decision thresholds: the probability above which a label is predicted.

A threshold is chosen on held-out rows for the best F1, a recall, a precision or the lowest cost of
errors. A binary classifier has one label, class 1. Letters: n rows, L labels.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import ArrayLike

from temper.functional.resampling import FloatArray, pair

_RATE = re.compile(r"(recall|precision)=(0?\.\d+|1|1\.0+)")
_COST = re.compile(r"cost=(\d+\.?\d*):(\d+\.?\d*)")


def parse_rule(rule: str) -> tuple[str, tuple[float, ...]]:
    """Parse the rule that a threshold is chosen by; return its name and numbers.

    Args:
        rule: ``f1``; ``recall=R`` or ``precision=P``, with a number in (0, 1]; or ``cost=FP:FN``,
            the costs of a false positive and of a false negative, both > 0.

    Raises:
        ValueError: The rule is none of these.

    Example:
        >>> parse_rule("recall=0.95"), parse_rule("cost=1:5")
        (('recall', (0.95,)), ('cost', (1.0, 5.0)))
    """
    text = rule.replace(" ", "")
    numbers: tuple[float, ...] = ()
    if rate := _RATE.fullmatch(text):
        name, numbers = rate[1], (float(rate[2]),)
    elif cost := _COST.fullmatch(text):
        name, numbers = "cost", (float(cost[1]), float(cost[2]))
    else:
        name = text
    if (name != "f1" and not numbers) or min(numbers, default=1.0) <= 0:
        raise ValueError(
            "must be f1, recall=R or precision=P with a number in (0, 1], or cost=FP:FN with two "
            f"numbers > 0, got {rule!r}"
        )
    return name, numbers


def choose_threshold(applies: ArrayLike, probabilities: ArrayLike, rule: str) -> float:
    """Return the best threshold of one label, which is predicted if its probability is above.

    ``f1`` maximizes F1, ``cost=FP:FN`` minimizes the cost of all errors, ``recall=R`` maximizes
    precision at a recall of at least R, and ``precision=P`` maximizes recall at a precision of at
    least P. Candidates are 0.5 and the midpoints between neighboring probabilities. Ties go to the
    one nearest to 0.5.

    Raises:
        ValueError: The label applies to no row or to all rows, or no threshold satisfies the rule.

    Example:
        >>> choose_threshold([0, 1, 0, 1], [0.1, 0.3, 0.4, 0.8], "recall=1")
        0.2

    References:
        Lipton, Elkan and Naryanaswamy, "Optimal Thresholding of Classifiers to Maximize F1
        Measure", ECML PKDD 2014.
    """
    name, numbers = parse_rule(rule)
    truth, chances = (side.astype(np.float64) for side in pair(applies, probabilities))
    positives = truth.sum()
    if not 0 < positives < len(truth):
        raise ValueError("the label applies to no row, or to all rows")
    values = np.unique(chances)[::-1]
    upper, lower = np.append(1.0, values), np.append(values, 0.0)
    middles = (upper + lower) / 2
    # The rounded midpoint of two adjacent doubles is one of them; take the lower one.
    thresholds = np.append(0.5, np.where(middles < upper, middles, lower))
    possible = (thresholds > 0) & (thresholds < 1)
    order = np.argsort(-chances, kind="stable")
    count = np.searchsorted(-chances[order], -thresholds, side="left")
    hits = np.append(0.0, np.cumsum(truth[order]))[count]
    false, missed = count - hits, positives - hits
    recall, precision = hits / positives, hits / np.maximum(count, 1)
    if name == "f1":
        goal = 2 * hits / (count + positives)
    elif name == "recall":
        goal = np.where(recall >= numbers[0], precision, -np.inf)
    elif name == "precision":
        goal = np.where((precision >= numbers[0]) & (hits > 0), recall, -np.inf)
    else:
        goal = -(numbers[0] * false + numbers[1] * missed)
    goal = np.where(possible, goal, -np.inf)
    best = goal.max()
    if best == -np.inf:
        raise ValueError(f"no threshold has a {name} of {numbers[0]:g}")
    equal = thresholds[goal >= best - 1e-12 * abs(best)]
    return float(equal[np.abs(equal - 0.5).argmin()])


def decision_scores(applies: ArrayLike, predicted: ArrayLike) -> dict[str, float]:
    """Return macro ``f1``, ``precision`` and ``recall`` of predicted labels [n, L].

    Labels that apply to no row are left out; if that is all of them, the scores are NaN. The
    precision of a label that is never predicted is 0.
    """
    truth, result = (np.asarray(item, dtype=np.float64) for item in (applies, predicted))
    hits, positives, count = (truth * result).sum(0), truth.sum(0), result.sum(0)
    known = positives > 0

    def mean(values: FloatArray) -> float:
        return float(values[known].mean()) if known.any() else float("nan")

    return {
        "f1": mean(2 * hits / np.maximum(count + positives, 1)),
        "precision": mean(hits / np.maximum(count, 1)),
        "recall": mean(hits / np.maximum(positives, 1)),
    }
