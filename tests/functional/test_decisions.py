"""Decision thresholds by brute force over all of them, and scores by scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, precision_score, recall_score

from temper.functional.decisions import choose_threshold, decision_scores, parse_rule

RULES = ("f1", "recall=0.8", "recall=1", "precision=0.7", "cost=1:5", "cost=3:1")


def goal(rule: str, truth: np.ndarray, chances: np.ndarray, cut: float) -> float:
    """Return how good decisions above a cut are by a rule; -inf if the rule forbids them."""
    hits = sum(1 for y, p in zip(truth, chances, strict=True) if y and p > cut)
    false = sum(1 for y, p in zip(truth, chances, strict=True) if not y and p > cut)
    missed = int(truth.sum()) - hits
    recall, precision = hits / (hits + missed), hits / (hits + false) if hits else 0.0
    name, _, number = rule.partition("=")
    if name == "f1":
        return 2 * hits / (2 * hits + false + missed)
    if name == "cost":
        first, second = map(float, number.split(":"))
        return -first * false - second * missed
    reached, other = (recall, precision) if name == "recall" else (precision, recall)
    return other if reached >= float(number) and (name == "recall" or hits) else -np.inf


@pytest.mark.parametrize("rule", RULES)
@given(seed=st.integers(0, 10_000), tied=st.booleans())
@settings(max_examples=40)
def test_no_other_threshold_is_better(rule: str, seed: int, tied: bool) -> None:
    draws = np.random.default_rng(seed)
    chances = draws.random(23)
    truth = draws.random(23) < chances
    truth[:2] = True, False
    if tied:
        chances = chances.round(1)
    cuts = np.concatenate([np.linspace(1e-3, 1 - 1e-3, 99), chances])
    cuts = cuts[(cuts > 0) & (cuts < 1)]
    goals = np.array([goal(rule, truth, chances, cut) for cut in cuts])
    if goals.max() == -np.inf:
        with pytest.raises(ValueError, match="no threshold has a (precision|recall)"):
            choose_threshold(truth, chances, rule)
        return
    chosen = choose_threshold(truth, chances, rule)
    assert 0 < chosen < 1
    assert goal(rule, truth, chances, chosen) == pytest.approx(goals.max(), abs=1e-12)
    if goal(rule, truth, chances, 0.5) >= goals.max():
        assert chosen == 0.5


def test_probabilities_of_0_and_1_and_neighboring_doubles_have_a_threshold() -> None:
    assert choose_threshold([0, 1], [0.0, 1.0], "f1") == 0.5
    low, high = 0.3, np.nextafter(0.3, 1)
    chosen = choose_threshold([0, 1, 1], [low, high, 0.9], "f1")
    assert low <= chosen < high


@pytest.mark.parametrize("truth", [[0, 0], [1, 1], []])
def test_a_label_of_no_row_or_of_each_has_no_threshold(truth: list[int]) -> None:
    with pytest.raises(ValueError, match="no row, or to all rows"):
        choose_threshold(truth, np.linspace(0.1, 0.9, len(truth)), "f1")


@pytest.mark.parametrize(
    "rule", ["f2", "recall", "recall=0", "recall=1.1", "cost=1", "cost=0:1", "precision=-0.5", ""]
)
def test_wrong_rules_raise_an_error(rule: str) -> None:
    with pytest.raises(ValueError, match="cost=FP:FN"):
        parse_rule(rule)


def test_rules_are_read() -> None:
    assert parse_rule("f1") == ("f1", ())
    assert parse_rule("precision = .9") == ("precision", (0.9,))
    assert parse_rule("cost=0.5:20") == ("cost", (0.5, 20.0))


def test_scores_of_decisions_are_scikit_learns() -> None:
    draws = np.random.default_rng(0)
    truth, result = draws.random((2, 60, 5)) < [[[0.3]], [[0.4]]]
    scores = decision_scores(truth, result)
    for name, score in (("f1", f1_score), ("recall", recall_score), ("precision", precision_score)):
        assert scores[name] == pytest.approx(score(truth, result, average="macro"))
    # A label of no row does not count.
    truth[:, 4] = False
    wanted = f1_score(truth[:, :4], result[:, :4], average="macro")
    assert decision_scores(truth, result)["f1"] == pytest.approx(wanted)
