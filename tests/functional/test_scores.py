"""Scores against hand-worked numbers, and against scikit-learn and scipy on arbitrary data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics

from temper.errors import SettingError
from temper.functional import detectors, scores

CLASSES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40)
# Few distinct numbers, so that ties are common.
TIED = st.lists(
    st.tuples(st.integers(-4, 4), st.sampled_from([-1.5, -1.0, 0.0, 0.25, 0.5, 3.0])),
    min_size=2,
    max_size=40,
)
FLAGGED = st.lists(
    st.tuples(st.booleans(), st.sampled_from([0.1, 0.2, 0.3, 0.4, 0.9])), min_size=2, max_size=40
)


def test_f1_by_hand() -> None:
    # TP 1, FP 1, FN 2: 2 / (2 + 1 + 2).
    assert float(scores.f1([1, 1, 1, 0], [1, 0, 0, 1])) == pytest.approx(0.4)


def test_f1_without_any_positive_is_undefined() -> None:
    assert np.isnan(scores.f1([0, 0], [0, 0]))


def test_f1_of_three_classes_raises_an_error() -> None:
    with pytest.raises(ValueError, match="two classes"):
        scores.f1([0, 2], [0, 1])


def test_matthews_of_one_predicted_class_is_zero_and_of_one_label_undefined() -> None:
    assert float(scores.matthews([0, 1], [1, 1])) == 0.0
    assert np.isnan(scores.matthews([1, 1], [0, 1]))


@pytest.mark.parametrize("score", [scores.pearson, scores.spearman])
@pytest.mark.parametrize("value", [0.1, 1e-200, 1e6 + 0.1])
def test_a_correlation_with_a_constant_is_undefined(score: object, value: float) -> None:
    assert np.isnan(score([0.3, 0.6, 0.1], [value] * 3))  # type: ignore[operator]


def test_tied_scores_cannot_be_ranked() -> None:
    assert float(detectors.auroc([1, 0, 1, 0], [0.5] * 4)) == 0.5
    assert float(detectors.aupr([1, 0, 0, 0], [0.5] * 4)) == 0.25
    assert float(detectors.fpr95([1, 0, 1, 0], [0.5] * 4)) == 1.0


def test_fpr95_needs_nineteen_of_twenty_anomalies() -> None:
    # 19 anomalies above the only alarm, the 20th below all.
    values = [2.0] * 19 + [0.0] + [1.0]
    assert float(detectors.fpr95([1] * 20 + [0], values)) == 0.0
    values[18] = 0.5
    assert float(detectors.fpr95([1] * 20 + [0], values)) == 1.0


@pytest.mark.parametrize("score", [detectors.auroc, detectors.aupr, detectors.fpr95])
@pytest.mark.parametrize("flag", [0, 1])
def test_an_anomaly_score_of_one_kind_is_undefined(score: object, flag: int) -> None:
    assert np.isnan(score([flag] * 3, [0.1, 0.2, 0.3]))  # type: ignore[operator]


@given(CLASSES)
def test_class_scores_agree_with_scikit_learn(rows: list[tuple[int, int]]) -> None:
    labels, predictions = map(list, zip(*rows, strict=True))
    assert float(scores.accuracy(labels, predictions)) == pytest.approx(
        metrics.accuracy_score(labels, predictions)
    )
    assert float(scores.macro_f1(labels, predictions)) == pytest.approx(
        metrics.f1_score(labels, predictions, average="macro", zero_division=0.0)
    )
    if len(set(labels)) > 1:
        assert float(scores.matthews(labels, predictions)) == pytest.approx(
            metrics.matthews_corrcoef(labels, predictions)
        )


@given(TIED)
def test_correlations_agree_with_scipy(rows: list[tuple[int, float]]) -> None:
    targets, predictions = map(list, zip(*rows, strict=True))
    if len(set(targets)) == 1 or len(set(predictions)) == 1:
        assert np.isnan(scores.pearson(targets, predictions))
        return
    assert float(scores.pearson(targets, predictions)) == pytest.approx(
        stats.pearsonr(targets, predictions).statistic
    )
    assert float(scores.spearman(targets, predictions)) == pytest.approx(
        stats.spearmanr(targets, predictions).statistic
    )
    assert float(scores.mean_squared_error(targets, predictions)) == pytest.approx(
        metrics.mean_squared_error(targets, predictions)
    )


@given(FLAGGED)
def test_anomaly_scores_agree_with_scikit_learn(rows: list[tuple[bool, float]]) -> None:
    flags, values = map(list, zip(*rows, strict=True))
    if len(set(flags)) == 1:
        assert np.isnan(detectors.auroc(flags, values))
        return
    assert float(detectors.auroc(flags, values)) == pytest.approx(
        metrics.roc_auc_score(flags, values)
    )
    assert float(detectors.aupr(flags, values)) == pytest.approx(
        metrics.average_precision_score(flags, values)
    )
    false, true, _ = metrics.roc_curve(flags, values, drop_intermediate=False)
    assert float(detectors.fpr95(flags, values)) == pytest.approx(false[true >= 0.95 - 1e-9].min())


@given(TIED, st.data())
def test_counts_equal_repeated_rows(rows: list[tuple[int, float]], data: st.DataObject) -> None:
    draw = st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows))
    counts = np.asarray([data.draw(draw), data.draw(draw)], dtype=np.float64)
    first = np.asarray([row[0] for row in rows])
    second = np.asarray([row[1] for row in rows])
    for score, one, two in [
        (scores.spearman, first, second),
        (scores.pearson, first, second),
        (scores.mean_squared_error, first, second),
        (detectors.auroc, first > 0, second),
        (detectors.aupr, first > 0, second),
        (detectors.fpr95, first > 0, second),
        (scores.macro_f1, first + 4, (second > 0).astype(int)),
        (scores.matthews, first + 4, (second > 0).astype(int)),
    ]:
        result = score(one, two, counts=counts)
        assert result.shape == (2,)
        for value, weight in zip(result, counts.astype(int), strict=True):
            chosen = np.repeat(np.arange(len(rows)), weight)
            if not len(chosen):
                assert np.isnan(value)
                continue
            alone = float(score(one[chosen], two[chosen]))
            assert value == pytest.approx(alone, nan_ok=True)


def test_scores_of_different_lengths_raise_an_error() -> None:
    with pytest.raises(ValueError, match=r"got \[2\] and \[1\]"):
        scores.accuracy([0, 1], [0])
    with pytest.raises(ValueError, match="`counts` must have shape"):
        scores.accuracy([0, 1], [0, 1], counts=[1])


def test_a_class_that_is_not_a_whole_number_raises_an_error() -> None:
    with pytest.raises(ValueError, match="whole numbers"):
        scores.macro_f1([0.5, 1], [0, 1])


def test_an_unknown_score_is_named_with_its_neighbor() -> None:
    with pytest.raises(SettingError, match=r"Unknown score 'acuracy'\. Did you mean 'accuracy'"):
        scores.facts("acuracy")


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), max_size=20), st.data())
def test_proportions_of_groups_equal_a_loop_over_groups(
    rows: list[tuple[int, int]], data: st.DataObject
) -> None:
    right, groups = np.array(rows, dtype=float).reshape(-1, 2).T
    weights = st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows))
    drawn = data.draw(st.lists(weights, min_size=2, max_size=2))
    counts = np.array(drawn, dtype=float).reshape(2, len(rows))
    means = scores.mean_group_accuracy(right, groups, counts=counts)
    least = scores.least_accuracy(right, groups, counts=counts)
    for at, weight in enumerate(counts.astype(int)):
        hits, kept = np.repeat(right, weight), np.repeat(groups, weight)
        fractions = [hits[kept == group].mean() for group in set(kept.tolist())]
        expected = np.mean(fractions) if fractions else np.nan
        assert means[at] == pytest.approx(expected, nan_ok=True)
        assert least[at] == pytest.approx(min(fractions, default=np.nan), nan_ok=True)
    if rows:
        one = [right[groups == group].mean() for group in set(groups.tolist())]
        assert float(scores.mean_group_accuracy(right, groups)) == pytest.approx(np.mean(one))
        assert float(scores.least_accuracy(right, groups)) == pytest.approx(min(one))


def test_f1_of_resamples_is_that_of_repeated_rows() -> None:
    labels, guesses = np.array([1, 1, 0, 0, 1]), np.array([1, 0, 1, 0, 1])
    counts = np.array([[1, 2, 0, 3, 1], [0, 0, 4, 1, 0], [0, 0, 0, 5, 0]])
    result = scores.f1(labels, guesses, counts=counts)
    # Once TP 2, FN 2, FP 0; once FP 4 alone; once no class 1 at all.
    assert result[:2] == pytest.approx([4 / 6, 0.0])
    assert np.isnan(result[2])


@pytest.mark.parametrize(
    ("name", "classes", "metric", "expected"),
    [
        ("accuracy", 5, "mcc", 0.2),
        ("accuracy", 1, "accuracy", 1.0),
        ("accuracy", 0, "accuracy", None),
        ("mcc", 3, "accuracy", 0.0),
        ("macro_f1", 3, "macro_f1", None),
        ("area", 4, "accuracy", 0.25),
        ("area", 4, "spearman", 0.0),
        ("area", 4, "no such score", None),
    ],
)
def test_the_chance_level_of_a_score_is_that_of_constant_predictions(
    name: str, classes: int, metric: str, expected: float | None
) -> None:
    assert scores.facts(name).guessed(classes, metric) == expected


def test_metrics_are_those_of_the_kind_of_labels_the_default_first() -> None:
    assert scores.metrics_of("classification") == ("accuracy", "macro_f1", "mcc", "f1")
    assert scores.metrics_of("choices") == ("accuracy",)
    assert scores.metrics_of("tokens")[0] == "entity_f1"
    assert scores.metrics_of("unlabeled") == ()


def test_the_function_of_a_score_is_found_by_its_name() -> None:
    assert float(scores.measure_of("mse")([0.0, 1.0], [2.0, 1.0])) == 2.0
    with pytest.raises(SettingError, match=r"score of predictions 'mcd'\. Did you mean 'mcc'"):
        scores.measure_of("mcd")


def test_a_score_may_be_added_again_and_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "SCORES", dict(scores.SCORES))
    new = scores.ScoreFacts("new", "New", True, 1.0, "never")
    scores.add_scores(new, scores.facts("accuracy"))
    scores.add_scores(scores.ScoreFacts("new", "New", True, 1.0, "never"))
    assert scores.facts("new") is new
    with pytest.raises(ValueError, match="'new' exists already"):
        scores.add_scores(scores.ScoreFacts("new", "New", False, 1.0, "never"))
    assert scores.facts("new") is new


def test_single_precision_is_scored_in_double() -> None:
    # In fp32, 1 and 1 + 1e-4 are correlated with targets near 1e4 to within two digits at best.
    draws = np.random.default_rng(0)
    first = (1e4 + draws.normal(size=50)).astype(np.float32)
    second = (first + draws.normal(size=50)).astype(np.float32)
    for score in (scores.pearson, scores.mean_squared_error):
        assert score(first, second) == score(first.astype(float), second.astype(float))


@pytest.mark.parametrize("score", [scores.pearson, scores.spearman])
def test_a_correlation_of_no_rows_is_undefined(score: Callable[..., np.ndarray]) -> None:
    assert np.isnan(score([], []))
    assert np.isnan(score([1.0, 2.0], [2.0, 1.0], counts=[[0, 0], [1, 1]])[0])


@pytest.mark.parametrize("score", [scores.pearson, scores.spearman])
def test_a_resample_of_one_value_has_no_correlation(score: Callable[..., np.ndarray]) -> None:
    # The mean of three times .1, or .2, is not that number in doubles.
    result = score([0.1, 0.2], [0.1, 0.2], counts=[[3, 0], [0, 3], [1, 1]])
    assert np.isnan(result[:2]).all()
    assert result[2] == pytest.approx(1.0)


def test_rounding_does_not_carry_a_correlation_beyond_1() -> None:
    for seed in range(50):
        values = np.random.default_rng(seed).normal(size=20)
        for factor in (3, -3):
            assert abs(float(scores.pearson(values, factor * values))) <= 1.0


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_a_correlation_does_not_depend_on_the_unit(scale: float) -> None:
    draws = np.random.default_rng(1)
    first, second = draws.normal(size=(2, 30))
    expected = stats.pearsonr(first, second).statistic
    assert scores.pearson(first * scale, second) == pytest.approx(expected, rel=1e-9)
    assert scores.pearson(first, second * scale) == pytest.approx(expected, rel=1e-9)


def test_a_row_that_a_resample_does_not_hold_changes_no_correlation() -> None:
    first, second = [1.0, 2.0, 3.0, 1e200], [1.0, 2.0, 3.0, 4.0]
    assert scores.pearson(first, second, counts=[1, 1, 1, 0]) == pytest.approx(1.0, abs=1e-12)


def test_the_area_of_the_area_has_no_chance_level() -> None:
    assert scores.facts("area").guessed(4, "area") is None
