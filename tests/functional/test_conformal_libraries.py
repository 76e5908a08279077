"""Conformal sets and intervals against MAPIE and crepes, if these are installed."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from temper.functional.conformal import (
    at_labels,
    conformal_quantile,
    conformal_quantiles,
    lac_scores,
    prediction_sets,
)

pytestmark = pytest.mark.filterwarnings("ignore")
# 91 and 46 times .2 or .1 are no whole numbers, which the libraries round as doubles.
HELD_OUT, ASKED, COVERAGES = 90, 60, (0.8, 0.9)
WHY = "no dependency of Temper: pip install mapie crepes compares with them"


class Precomputed(BaseEstimator):
    """A fitted model whose inputs are its predictions."""

    n_features_in_ = 4
    is_fitted_ = True

    def fit(self, inputs: np.ndarray, targets: np.ndarray) -> Precomputed:
        return self


class Classifier(ClassifierMixin, Precomputed):
    classes_ = np.arange(4)

    def predict_proba(self, inputs: np.ndarray) -> np.ndarray:
        return np.asarray(inputs)

    def predict(self, inputs: np.ndarray) -> np.ndarray:
        return np.asarray(inputs).argmax(axis=1)


class Regression(RegressorMixin, Precomputed):
    def predict(self, inputs: np.ndarray) -> np.ndarray:
        return np.asarray(inputs)[:, 0]


def rows(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities of held-out rows and rows to predict, and their labels."""
    draws = np.random.default_rng(seed)
    fractions = draws.dirichlet([0.6, 0.5, 0.4, 0.3], size=HELD_OUT + ASKED)
    return fractions, (fractions.cumsum(axis=1) < draws.random((len(fractions), 1))).sum(
        axis=1
    ).clip(max=3)


def values(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return predicted values and targets."""
    draws = np.random.default_rng(seed)
    predicted = draws.normal(size=HELD_OUT + ASKED)
    return predicted, predicted + draws.normal(size=len(predicted))


def our_sets(fractions: np.ndarray, labels: np.ndarray, coverage: float) -> np.ndarray:
    scores = lac_scores(fractions)
    threshold = conformal_quantile(at_labels(scores, labels)[:HELD_OUT], coverage=coverage)
    return prediction_sets(scores[HELD_OUT:], threshold)


@pytest.mark.parametrize("coverage", COVERAGES)
def test_sets_are_those_of_mapie(coverage: float) -> None:
    mapie = pytest.importorskip("mapie.classification", reason=WHY)
    for seed in range(3):
        fractions, labels = rows(seed)
        theirs = mapie.SplitConformalClassifier(
            Classifier(), confidence_level=coverage, conformity_score="lac", random_state=seed
        ).conformalize(fractions[:HELD_OUT], labels[:HELD_OUT])
        _, sets = theirs.predict_set(fractions[HELD_OUT:])
        assert (sets[:, :, 0] == our_sets(fractions, labels, coverage)).all()


@pytest.mark.parametrize("coverage", COVERAGES)
def test_intervals_are_those_of_mapie(coverage: float) -> None:
    mapie = pytest.importorskip("mapie.regression", reason=WHY)
    for seed in range(3):
        predicted, targets = values(seed)
        held_out, new = predicted[:HELD_OUT], predicted[HELD_OUT:]
        theirs = mapie.SplitConformalRegressor(Regression(), confidence_level=coverage)
        theirs.conformalize(held_out[:, None], targets[:HELD_OUT])
        _, ends = theirs.predict_interval(new[:, None])
        residuals = np.abs(targets[:HELD_OUT] - held_out)
        threshold = conformal_quantile(residuals, coverage=coverage)
        result = np.column_stack([new - threshold, new + threshold])
        assert ends[:, :, 0] == pytest.approx(result, abs=1e-12)


@pytest.mark.parametrize("coverage", COVERAGES)
def test_sets_of_each_kind_are_those_of_crepes(coverage: float) -> None:
    crepes = pytest.importorskip("crepes", reason=WHY)
    for seed in range(3):
        fractions, labels = rows(seed)
        scores = lac_scores(fractions)
        own, asked = at_labels(scores, labels)[:HELD_OUT], scores[HELD_OUT:]
        kinds = np.arange(HELD_OUT) % 2
        theirs = crepes.ConformalClassifier().fit(own)
        sets = theirs.predict_set(asked, confidence=coverage, smoothing=False)
        assert (sets.astype(bool) == our_sets(fractions, labels, coverage)).all()
        theirs = crepes.ConformalClassifier().fit(own, bins=kinds)
        new = np.arange(ASKED) % 2
        sets = theirs.predict_set(asked, bins=new, confidence=coverage, smoothing=False)
        thresholds = conformal_quantiles(own, kinds, 2, coverage=coverage)
        assert (sets.astype(bool) == prediction_sets(asked, thresholds[new][:, None])).all()


@pytest.mark.parametrize("coverage", COVERAGES)
def test_intervals_of_each_kind_are_those_of_crepes(coverage: float) -> None:
    crepes = pytest.importorskip("crepes", reason=WHY)
    predicted, targets = values(0)
    kinds, new = np.arange(HELD_OUT) % 2, np.arange(ASKED) % 2
    residuals = targets[:HELD_OUT] - predicted[:HELD_OUT]
    theirs = crepes.ConformalRegressor().fit(residuals, bins=kinds)
    ends = theirs.predict_int(predicted[HELD_OUT:], bins=new, confidence=coverage)
    thresholds = conformal_quantiles(np.abs(residuals), kinds, 2, coverage=coverage)[new]
    result = predicted[HELD_OUT:] - thresholds, predicted[HELD_OUT:] + thresholds
    assert ends == pytest.approx(np.column_stack(result), abs=1e-12)
