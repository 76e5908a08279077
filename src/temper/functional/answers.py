"""Scores of answers in a context, with SQuAD's normalization."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from temper.functional.resampling import FloatArray

SPAN_SCORES = ("span_f1", "span_exact_match")
"""Columns of `answer_scores`."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_SIGNS = str.maketrans("", "", string.punctuation)


def normalized(answer: str) -> str:
    """Return an answer in lower case, without punctuation, English articles and extra spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_SIGNS)).split())


def answer_scores(predictions: Iterable[str], answers: Iterable[Sequence[str]]) -> FloatArray:
    """Score predicted answers [n, 2], each by the right one that it fits best; see `SPAN_SCORES`.

    F1 is that of the bags of words of both; the exact match is 1 if both are equal, else 0. A
    missing prediction is the empty text.

    References:
        SQuAD (arXiv 1606.05250), section 6.1, and its script evaluate-v1.1.py.
    """
    rows = [
        np.max([_score(prediction, answer) for answer in right], axis=0)
        for prediction, right in zip(predictions, answers, strict=True)
    ]
    return np.array(rows, dtype=np.float64).reshape(-1, len(SPAN_SCORES))


def _score(prediction: str, answer: str) -> tuple[float, float]:
    first, second = normalized(prediction), normalized(answer)
    one, two = first.split(), second.split()
    common = sum((Counter(one) & Counter(two)).values())
    return 2 * common / max(len(one) + len(two), 1), float(first == second)
