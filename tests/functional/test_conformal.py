"""Conformal sets: worked numbers, MAPIE's sets, and coverage on exchangeable rows."""

from __future__ import annotations

import gzip
import itertools
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline

from temper.functional.conformal import (
    at_labels,
    chance_coverage,
    conformal_quantile,
    conformal_quantiles,
    lac_scores,
    least_rows,
    prediction_sets,
    risk_threshold,
)
from temper.functional.detectors import Mahalanobis

SPLITS = 200
COVERAGES = st.sampled_from([0.5, 0.57, 0.8, 0.9, 0.95, 0.99])


def predictions(seed: int, rows: int, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities of a model that is a little too sure, and labels."""
    draws = np.random.default_rng(seed)
    logits = draws.normal(size=(rows, classes)) * 1.5
    truth = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (truth.cumsum(axis=1) < draws.uniform(size=(rows, 1))).sum(axis=1)
    sure = np.exp(1.7 * logits)
    return sure / sure.sum(axis=1, keepdims=True), labels.clip(max=classes - 1)


@given(COVERAGES)
def test_the_least_rows_are_the_fewest_that_have_the_quantile(coverage: float) -> None:
    exact = Fraction(str(coverage))
    enough = [n for n in range(1, 200) if math.ceil((n + 1) * exact) <= n]
    assert least_rows(coverage) == enough[0]
    conformal_quantile(np.zeros(enough[0]), coverage=coverage)
    with pytest.raises(ValueError, match=f"needs at least {enough[0]} held-out rows, got"):
        conformal_quantile(np.zeros(enough[0] - 1), coverage=coverage)


def test_the_rank_is_that_of_the_decimal_not_of_the_double() -> None:
    # 100 * .57 is 56.99999999999999 and 100 * .07 is 7.000000000000001 in doubles.
    assert conformal_quantile(range(1, 100), coverage=0.57) == 57
    assert conformal_quantile(range(1, 100), coverage=0.07) == 7
    # So many that finding one of them does not sort them all.
    for rows in (300, 5000):
        many = np.random.default_rng(0).permutation(rows) + 1
        for percent in range(1, 100):
            rank = math.ceil((rows + 1) * Fraction(percent, 100))
            assert conformal_quantile(many, coverage=percent / 100) == rank


# MAPIE 1.6.0: SplitConformalClassifier; a set is a hexadecimal digit, class k its bit k.
MAPIE = {
    0.8: (0.7912792665022714, "621393aa8a18e925928cd34595255a983a565354"),
    0.9: (0.8563498752393406, "7a1393ba8a18e92593acd35595355b983a565354"),
}


@pytest.mark.parametrize("coverage", MAPIE)
def test_thresholds_and_sets_are_mapies(coverage: float) -> None:
    draws = np.random.RandomState(7)
    probabilities = draws.dirichlet([0.6, 0.5, 0.4, 0.3], size=130)
    labels = (probabilities.cumsum(axis=1) < draws.uniform(size=(130, 1))).sum(axis=1)
    scores = lac_scores(probabilities[:90])
    threshold = conformal_quantile(at_labels(scores, labels[:90]), coverage=coverage)
    wanted, digits = MAPIE[coverage]
    assert threshold == pytest.approx(wanted, abs=1e-14)
    sets = prediction_sets(lac_scores(probabilities[90:]), threshold)
    assert "".join(f"{int(row @ [1, 2, 4, 8]):x}" for row in sets) == digits


def covered(*, by: str | None = None) -> np.ndarray:
    """Count rows covered of the 100 predicted in each of the splits: of all, or of class 0."""
    counts = []
    for split in range(SPLITS):
        probabilities, labels = predictions(split, 99 + 400)
        scores = lac_scores(probabilities)
        own = at_labels(scores, labels)
        if by == "class":
            # As many rows of each class, so that the law has one n.
            kept = [np.flatnonzero(labels == k)[:39] for k in range(4)]
            rest = np.setdiff1d(np.flatnonzero(labels == 0), kept[0])[:40]
            indices = np.concatenate(kept)
            thresholds = conformal_quantiles(own[indices], labels[indices], 4, coverage=0.9)
        else:
            thresholds = conformal_quantile(own[:99], coverage=0.9)
            rest = np.arange(99, 199)
        sets = prediction_sets(scores[rest], thresholds)
        counts.append(int(sets[np.arange(len(rest)), labels[rest]].sum()))
    return np.array(counts)


def reach(n: int, rows: int, coverage: float) -> float:
    """Return four standard errors of the mean fraction over the splits, for ranks without ties."""
    fraction = math.ceil((n + 1) * coverage) / (n + 1)
    return 4 * math.sqrt(fraction * (1 - fraction) / (n + 2) * (n + 1 + rows) / rows / SPLITS)


def test_coverage_is_nominal_over_splits() -> None:
    assert covered().mean() / 100 == pytest.approx(0.9, abs=reach(99, 100, 0.9))


def test_coverage_by_class_holds_in_the_class() -> None:
    assert covered(by="class").mean() / 40 == pytest.approx(0.9, abs=reach(39, 40, 0.9))


def texts_with_labels(seed: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities of five labels that are too sure, and which apply; some rows none."""
    draws = np.random.default_rng(seed)
    logits = draws.normal(size=(rows, 5)) * 1.5 - 1
    applies = draws.random((rows, 5)) < 1 / (1 + np.exp(-logits))
    return 1 / (1 + np.exp(-2 * logits)), applies


def missed(scores: np.ndarray, applies: np.ndarray, threshold: float) -> np.ndarray:
    """Return the fraction of its labels that each row with a label misses, in exact numbers."""
    rows = [
        Fraction(sum(1 for k in own if row[k] > threshold), len(own))
        for row, own in ((row, np.flatnonzero(y)) for row, y in zip(scores, applies, strict=True))
        if len(own)
    ]
    return np.array(rows)


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9])
@pytest.mark.parametrize("seed", range(5))
def test_the_risk_threshold_is_the_lowest_that_its_definition_allows(
    coverage: float, seed: int
) -> None:
    probabilities, applies = texts_with_labels(seed, 40)
    # Rounded, so that scores tie and bounds are met exactly.
    scores = lac_scores(probabilities.round(1))

    def allowed(threshold: float) -> bool:
        losses = missed(scores, applies, threshold)
        n = len(losses)
        bound = Fraction(n, n + 1) * (sum(losses) / n) + Fraction(1, n + 1)
        return bool(bound <= 1 - Fraction(str(coverage)))

    result = [each for each in np.unique(scores) if allowed(each)]
    assert risk_threshold(scores, applies, coverage=coverage) == result[0]
    # Rows without a label change nothing.
    known = applies.any(axis=1)
    assert risk_threshold(scores[known], applies[known], coverage=coverage) == result[0]


def test_the_expected_fraction_of_missed_labels_is_bounded_over_splits() -> None:
    losses = []
    for split in range(SPLITS):
        probabilities, applies = texts_with_labels(split, 200)
        scores = lac_scores(probabilities)
        threshold = risk_threshold(scores[:100], applies[:100], coverage=0.8)
        losses.append(float(missed(scores[100:], applies[100:], threshold).mean()))
    # The mean loss is at most 0.2, and at least 0.2 - 2 B / (n + 1) without ties (Theorem 2).
    error = 3 * np.std(losses) / math.sqrt(SPLITS)
    assert 0.2 - 2 / 60 - error <= np.mean(losses) <= 0.2 + error


def test_too_few_rows_with_a_label_have_no_risk_threshold() -> None:
    applies = np.zeros((30, 2), dtype=bool)
    applies[:9, 0] = True
    risk_threshold(np.full((30, 2), 0.5), applies, coverage=0.9)
    applies[8] = False
    with pytest.raises(ValueError, match="at least 9 held-out rows with a label, got 8"):
        risk_threshold(np.full((30, 2), 0.5), applies, coverage=0.9)


@pytest.mark.parametrize("name", ["sst2", "trec"])
def test_coverage_is_nominal_over_splits_of_real_texts(name: str, data_dir: Path) -> None:
    with gzip.open(data_dir / name / "train.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in itertools.islice(lines, 4000)]
    known = {row["text"]: row["label"] for row in rows}
    texts, labels = list(known), np.array(list(known.values()))
    model = make_pipeline(TfidfVectorizer(min_df=2), LogisticRegression(C=5))
    model.fit(texts[:2000], labels[:2000])
    probabilities, labels = model.predict_proba(texts[2000:]), labels[2000:]
    draws = np.random.default_rng(0)
    n = 299
    scores, fractions = lac_scores(probabilities), []
    for _ in range(SPLITS):
        order = draws.permutation(len(labels))
        threshold = conformal_quantile(at_labels(scores, labels)[order[:n]], coverage=0.9)
        sets = prediction_sets(scores[order[n:]], threshold)
        fractions.append(float(at_labels(sets, labels[order[n:]]).mean()))
    assert np.mean(fractions) == pytest.approx(0.9, abs=reach(n, len(labels) - n, 0.9))


def shares_over_splits(scores: np.ndarray, n: int, coverage: float) -> np.ndarray:
    """Return the fraction of other rows at or below a threshold of n rows, for each split."""
    draws, fractions = np.random.default_rng(0), []
    for _ in range(SPLITS):
        mixed = draws.permutation(scores)
        fractions.append((mixed[n:] <= conformal_quantile(mixed[:n], coverage=coverage)).mean())
    return np.array(fractions)


def unlike_by_two(rows: list[dict]) -> np.ndarray:
    """Return features of pairs of texts: common words, all words, and lengths."""
    result = []
    for row in rows:
        first, second = (set(row[name].lower().split()) for name in ("text", "text_pair"))
        shared, whole = len(first & second), len(first | second)
        result.append([shared / whole, shared, whole, abs(len(first) - len(second))])
    return np.array(result, dtype=float)


def test_intervals_cover_over_splits_of_real_pairs(data_dir: Path) -> None:
    with gzip.open(data_dir / "stsb" / "train.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in itertools.islice(lines, 2600)]
    inputs, targets = unlike_by_two(rows), np.array([row["label"] for row in rows], dtype=float)
    fit, kept = slice(600), slice(600, None)
    value = Ridge().fit(inputs[fit], targets[fit]).predict(inputs[kept])
    residuals = np.abs(targets[kept] - value)
    fraction = shares_over_splits(residuals, 299, 0.9)
    assert fraction.mean() == pytest.approx(0.9, abs=reach(299, len(residuals) - 299, 0.9))


def test_false_alarms_come_at_the_stated_rate_over_splits_of_real_texts(data_dir: Path) -> None:
    with gzip.open(data_dir / "sst2" / "train.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in itertools.islice(lines, 4000)]
    known = {row["text"]: row["label"] for row in rows}
    words = TfidfVectorizer(min_df=5).fit_transform(known)
    states = TruncatedSVD(20, random_state=0).fit_transform(words)
    states += 1e-9 * np.random.default_rng(0).normal(size=states.shape)  # rows without a known word
    layers = states.reshape(len(states), 2, 10)
    scores = Mahalanobis.of(layers[:1500]).score(layers[1500:])
    alarms = 1 - shares_over_splits(scores, 299, 0.95)
    assert alarms.mean() == pytest.approx(0.05, abs=reach(299, len(known) - 1799, 0.95))


def test_the_coverage_of_a_split_lies_in_its_chance_range() -> None:
    low, high = chance_coverage(99, 100, coverage=0.9, confidence=0.9)
    fraction = covered() / 100
    # At most 5 in 100 on either side, plus three standard errors over the splits.
    for outside in (fraction < low, fraction > high):
        assert outside.mean() <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / SPLITS)
    # It is no wider than it must be: one row more on either side is too many.
    inner = [(fraction <= low).mean(), (fraction >= high).mean()]
    assert min(inner) > 0.05 - 3 * math.sqrt(0.05 * 0.95 / SPLITS)


def test_the_chance_range_is_worked_by_hand() -> None:
    # n = 3, k = 2: BetaBinomial(2, 2, 2) has 0, 1, 2 with 3/10, 4/10, 3/10.
    assert chance_coverage(3, 2, coverage=0.5, confidence=0.5) == (0.0, 1.0)
    assert chance_coverage(3, 2, coverage=0.5, confidence=0.3) == (0.5, 0.5)
    # n = k = 1, the fewest rows there can be: every number of 0 to 4 has 1/5.
    assert chance_coverage(1, 4, coverage=0.5, confidence=0.5) == (0.25, 0.75)


@given(st.integers(0, 1000))
def test_sets_grow_with_the_coverage(seed: int) -> None:
    probabilities, labels = predictions(seed, 60)
    scores = lac_scores(probabilities)
    own = at_labels(scores, labels)
    smaller = np.zeros(scores.shape, dtype=bool)
    for coverage in (0.5, 0.7, 0.9, 0.98):
        sets = prediction_sets(scores, conformal_quantile(own, coverage=coverage))
        assert not (smaller & ~sets).any()
        assert (sets[np.arange(60), labels]).mean() >= coverage
        smaller = sets


@given(st.integers(0, 1000))
def test_a_class_is_in_the_set_wherever_a_less_likely_one_is(seed: int) -> None:
    probabilities, labels = predictions(seed, 40)
    scores = lac_scores(probabilities)
    sets = prediction_sets(scores, conformal_quantile(at_labels(scores, labels), coverage=0.8))
    ranked = np.take_along_axis(sets, np.argsort(-probabilities, axis=1), axis=1)
    assert (np.diff(ranked.astype(int), axis=1) <= 0).all()


def test_thresholds_of_classes_are_of_the_rows_of_the_class() -> None:
    thresholds = conformal_quantiles(range(1, 9), [0, 1] * 4, 2, coverage=0.6)
    assert thresholds.tolist() == [5.0, 6.0]
    sets = prediction_sets([[5.5, 5.5], [4.5, 7.0]], thresholds)
    assert sets.tolist() == [[False, True], [True, False]]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: least_rows(0.0), r"`coverage` must be in \(0, 1\), got 0.0"),
        (lambda: least_rows(1.0), r"`coverage` must be in \(0, 1\), got 1.0"),
        (lambda: conformal_quantile([np.nan] * 20, coverage=0.5), "without NaN"),
        (lambda: conformal_quantile([[1.0]], coverage=0.5), r"got shape \[1, 1\]"),
        (
            lambda: conformal_quantiles(range(10), [0] * 9 + [1], 3, coverage=0.9),
            "needs at least 9 held-out rows of each: class 1 has 1, 2 has 0",
        ),
        (
            lambda: conformal_quantiles([1, 2], [0, 1], 1, coverage=0.5),
            "label 1, but classes=1",
        ),
        (lambda: lac_scores([[2.0, -1.0]]), "Pass probabilities, not logits"),
        (lambda: lac_scores([[1.5, 0.5]]), "Pass probabilities, not logits"),
        (lambda: lac_scores([[0.5, -0.5]]), "Pass probabilities, not logits"),
        (lambda: lac_scores([0.5, 0.5]), r"probabilities \[N, C\], got shape \[2\]"),
        (lambda: at_labels([[0.5, 0.5]], [2]), "class indices from 0 to 1"),
        (lambda: at_labels([[0.5, 0.5]], [1, 0]), r"got \[2\] and \[1, 2\]"),
    ],
)
def test_invalid_requests_raise_an_error(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
