"""SQuAD scores of extracted answers: word F1 and exact match."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from temper.functional.resampling import FloatArray

SPAN_SCORES = ("span_f1", "span_exact_match")
"""Names of the two columns that `answer_scores` returns."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_SIGNS = str.maketrans("", "", string.punctuation)


def normalized(answer: str) -> str:
    """Return an answer in lower case, without punctuation, English articles and extra spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_SIGNS)).split())


def answer_scores(predictions: Iterable[str], answers: Iterable[Sequence[str]]) -> FloatArray:
    """Return word F1 and exact match (0 or 1) of each predicted answer, [n, 2].

    Each is the highest over the row's correct answers. Both compare `normalized` text, F1 as bags
    of words. A missing prediction is an empty string.

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
