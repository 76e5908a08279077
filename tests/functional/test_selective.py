"""Selective prediction: scores from their definition, and a limit that holds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from temper.functional.selective import (
    area_under_risk,
    excess_area,
    risk_at_coverage,
    risk_curve,
    shown_risks,
)

# Even in log odds; the last one accepts all rows.
CONFIDENCES = (*special.expit(np.linspace(10.0, -5.0, 151)).tolist(), 0.0)
ROWS = st.lists(
    st.tuples(st.booleans(), st.sampled_from([0.25, 0.5, 0.75])), min_size=1, max_size=6
)


def orders(rows: list[tuple[bool, float]]) -> list[list[bool]]:
    """Return every order of the faults from the surest row on, of all orders within ties."""
    return [
        [fault for fault, _ in order]
        for order in itertools.permutations(rows)
        if all(first[1] >= second[1] for first, second in itertools.pairwise(order))
    ]


def area(faults: list[bool]) -> float:
    return float(np.mean([np.mean(faults[:k]) for k in range(1, len(faults) + 1)]))


@given(ROWS)
def test_the_area_is_the_mean_of_the_risks_over_all_orders_of_ties(
    rows: list[tuple[bool, float]],
) -> None:
    wrong, sure = zip(*rows, strict=True)
    wanted = np.mean([area(faults) for faults in orders(rows)])
    assert float(area_under_risk(wrong, sure)) == pytest.approx(wanted, abs=1e-12)
    best = area(sorted(wrong))
    assert float(excess_area(wrong, sure)) == pytest.approx(max(wanted - best, 0), abs=1e-12)


@given(ROWS, st.sampled_from([0.25, 0.5, 1.0]))
def test_the_risk_at_a_coverage_is_that_of_the_surest_rows(
    rows: list[tuple[bool, float]], coverage: float
) -> None:
    # Four times each, so that the coverage is a whole number of rows; ties in their mean order.
    wrong, sure = zip(*rows, strict=True)
    result = float(risk_at_coverage(wrong, sure, coverage=coverage))
    errors = [
        np.interp(coverage * len(rows), range(len(rows) + 1), np.append(0, np.cumsum(faults)))
        for faults in orders(rows)
    ]
    assert result == pytest.approx(np.mean(errors) / (coverage * len(rows)), abs=1e-12)


@given(ROWS, st.data())
def test_counts_are_rows_that_are_repeated(rows: list[tuple[bool, float]], data) -> None:
    counts = data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
    wrong, sure = (np.array(side, dtype=float) for side in zip(*rows, strict=True))
    repeated = np.repeat(wrong, counts), np.repeat(sure, counts)
    for measure in (
        area_under_risk,
        excess_area,
        lambda *of, **k: risk_at_coverage(*of, coverage=0.7, **k),
    ):
        resampled = measure(wrong, sure, counts=[counts, [1] * len(rows)])
        alone = [measure(*repeated), measure(wrong, sure)]
        assert resampled == pytest.approx(np.array(alone), abs=1e-12, nan_ok=True)


def test_the_curve_has_a_point_for_each_confidence() -> None:
    result = risk_curve([1, 0, 0, 1], [0.9, 0.9, 0.8, 0.5])
    assert result.thresholds.tolist() == [0.9, 0.8, 0.5]
    assert result.coverages.tolist() == [0.5, 0.75, 1.0]
    assert result.risks.tolist() == [0.5, 1 / 3, 0.5]


def simulated(seed: int, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return confidences, faults, and each row's probability to be wrong; too sure by half."""
    draws = np.random.default_rng(seed)
    odds = np.abs(draws.normal(0, 4, size=rows))
    probability = 1 / (1 + np.exp(0.5 * odds))
    return 1 / (1 + np.exp(-odds)), draws.random(rows) < probability, probability


def lowest(shown: np.ndarray, risk: float, thresholds: Sequence[float] = CONFIDENCES) -> float:
    """Return the lowest threshold that is shown to keep a risk, inf where there is none."""
    return min(
        [limit for limit, least in zip(thresholds, shown, strict=True) if least <= risk],
        default=np.inf,
    )


@pytest.mark.parametrize("failure", [0.1, 0.3])
def test_the_limit_fails_no_more_often_than_stated(failure: float) -> None:
    runs, risk = 300, 0.15
    confidences, _, probabilities = simulated(1_000_000, 100_000)
    failed, coverages = 0, []
    for seed in range(runs):
        sure, wrong, _ = simulated(seed, 600)
        accepted = confidences >= lowest(
            shown_risks(sure, wrong, failure=failure, thresholds=CONFIDENCES), risk
        )
        coverages.append(accepted.mean())
        failed += bool(accepted.any() and probabilities[accepted].mean() > risk)
    assert stats.binomtest(failed, runs, failure, alternative="greater").pvalue > 1e-3
    # It accepts something: half of what a threshold that knows the truth would.
    order = np.argsort(-confidences)
    risks = np.cumsum(probabilities[order]) / np.arange(1, len(order) + 1)
    assert np.mean(coverages) > 0.5 * (risks <= risk).mean()


@given(st.integers(0, 10_000), st.integers(1, 5), st.floats(0.02, 0.5))
def test_the_sequence_stops_at_the_first_threshold_that_is_not_shown(
    seed: int, starts: int, risk: float
) -> None:
    sure, wrong, _ = simulated(seed, 120)
    limits = np.linspace(1.0, 0.4, 13)
    best = np.inf
    for start in range(starts):
        for index in range(len(limits) * start // starts, len(limits)):
            kept = sure >= limits[index]
            p = stats.binomtest(int(wrong[kept].sum()), max(int(kept.sum()), 1), risk, "less")
            if not kept.any() or p.pvalue > 0.2 / starts:
                break
            best = min(best, limits[index])
    shown = shown_risks(sure, wrong, failure=0.2, thresholds=limits.tolist(), starts=starts)
    assert lowest(shown, risk, limits.tolist()) == best


def test_without_a_shown_risk_there_is_no_guarantee() -> None:
    assert lowest(shown_risks([0.9] * 20, [False] * 20, thresholds=CONFIDENCES), 0.05) == np.inf
    assert shown_risks([], [], thresholds=CONFIDENCES).tolist() == [1.0] * len(CONFIDENCES)


def test_rows_that_another_rule_abstains_on_are_never_accepted() -> None:
    sure = np.where(np.arange(400) < 200, 0.9, -np.inf)
    assert lowest(shown_risks(sure, np.arange(400) >= 200, thresholds=CONFIDENCES), 0.1) == 0.0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"failure": 0.0}, r"`failure` must be in \(0, 1\), got 0.0"),
        ({"failure": 1.0}, r"`failure` must be in \(0, 1\), got 1.0"),
        ({"thresholds": (0.5, 0.6, 0.4, 0.3)}, "`thresholds` must be decreasing"),
        ({"thresholds": (0.6, 0.5, 0.5, 0.3)}, "`thresholds` must be decreasing"),
        ({"starts": 0}, f"got {len(CONFIDENCES)} thresholds and 0 starts"),
    ],
)
def test_invalid_risk_limits_raise_an_error(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        shown_risks([0.5], [False], **{"thresholds": CONFIDENCES, **settings})


def test_a_nan_confidence_raises_an_error() -> None:
    with pytest.raises(ValueError, match="A confidence is NaN"):
        area_under_risk([0, 1], [np.nan, 0.5])


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1)), min_size=1, max_size=30))
def test_the_excess_is_the_area_less_that_of_all_wrong_rows_last(
    rows: list[tuple[bool, float]],
) -> None:
    wrong, sure = zip(*rows, strict=True)
    best = area(sorted(wrong))
    whole = float(area_under_risk(wrong, sure))
    assert float(excess_area(wrong, sure)) == pytest.approx(max(whole - best, 0.0), abs=1e-12)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([0.2, 0.5, 0.9])), max_size=8))
def test_each_point_of_the_curve_is_the_risk_of_the_rows_above_its_threshold(
    rows: list[tuple[bool, float]],
) -> None:
    curve = risk_curve([wrong for wrong, _ in rows], [sure for _, sure in rows])
    assert curve.thresholds.tolist() == sorted({sure for _, sure in rows}, reverse=True)
    for threshold, coverage, risk in zip(
        curve.thresholds, curve.coverages, curve.risks, strict=True
    ):
        accepted = [wrong for wrong, sure in rows if sure >= threshold]
        assert coverage == pytest.approx(len(accepted) / len(rows))
        assert risk == pytest.approx(np.mean(accepted))


def test_every_threshold_may_be_a_start_and_no_more_than_there_are() -> None:
    sure, wrong = [0.9] * 50 + [0.6] * 50, [0] * 100
    shown = shown_risks(sure, wrong, failure=0.1, thresholds=[0.9, 0.6], starts=2)
    assert (shown < 1).all()
    # Rows at the threshold are accepted: 100 of them bound the risk lower than 50.
    assert shown[1] < shown[0]
    for starts in (0, 3):
        with pytest.raises(ValueError, match=f"got 2 thresholds and {starts} starts"):
            shown_risks(sure, wrong, failure=0.1, thresholds=[0.9, 0.6], starts=starts)
