"""The confusion matrix and the scores of classes equal scikit-learn's."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn import metrics

from temper.report.error_analysis import class_scores, confusion_matrix

CLASSES = 4


@given(st.lists(st.tuples(st.integers(0, CLASSES - 1), st.integers(0, CLASSES - 1)), min_size=1))
def test_confusions_and_scores_equal_scikit_learns(rows: list[tuple[int, int]]) -> None:
    labels, predictions = (list(each) for each in zip(*rows, strict=True))
    names = range(CLASSES)
    result = confusion_matrix(labels, predictions, classes=CLASSES)
    assert (result == metrics.confusion_matrix(labels, predictions, labels=names)).all()
    *wanted, _ = metrics.precision_recall_fscore_support(
        labels, predictions, labels=names, zero_division=np.nan
    )
    for ours, theirs in zip(class_scores(result), wanted, strict=True):
        assert_allclose(ours, theirs)
