"""Test whether texts come from another distribution than the calibration's held-out rows.

    from pipeline import Pipeline
    from shift import shift

    pipeline = Pipeline()
    outputs, states = pipeline.outputs(texts)
    predictions, shifted = pipeline.predictions(outputs, states), shift(pipeline, states)

`temper export` wrote this file. You may change and redistribute it (Apache-2.0).
"""

import hashlib
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
# `temper.functional.shift.alarm_level(rate=0.01, references=0.95)`: for 19 in 20 sets of held-out
# rows, at most one in a hundred batches without a shift has a p value this low.
ALARM = 0.00235


def shift(pipeline: Any, states: Array) -> dict[str, Any] | None:
    """Test texts, in order of arrival, against the held-out rows of the calibration.

    Args:
        pipeline: A `pipeline.Pipeline`.
        states: The states from its `outputs`. Of more than 200 texts, 200 at equal distances are
            used.

    Returns:
        ``p`` of a two-sample test, ``shifted`` (whether p <= 0.00235), and ``rows``, the number of
        tested texts. None for fewer than 20 texts, or if the calibration has no held-out rows.
    """
    known, count = pipeline.arrays, len(states)
    if "held_out.predictions" not in known or count < 20:
        return None
    held_out = known["held_out.predictions"]
    reference = known.get("shift.states", held_out.reshape(len(held_out), -1)[:200])
    if states.ndim == 3:
        states = states[:, states.shape[1] // 2]  # the middle layer
    indices = np.linspace(0, count - 1, min(count, 200)).round().astype(int)
    p = mmd_p(reference, states[indices])
    return {"p": p, "shifted": p <= ALARM, "rows": len(indices)}


def mmd_p(first: Array, second: Array) -> float:
    """Return the p-value of a kernel two-sample permutation test (Gretton et al., JMLR 2012).

    Args:
        first: States, [n, D].
        second: States, [m, D].
    """
    rows, n, m = np.concatenate([first, second]), len(first), len(second)
    rows = rows - rows.mean(axis=0)
    lengths = (rows**2).sum(axis=1)
    squares = (lengths[:, None] + lengths - 2.0 * rows @ rows.T).clip(min=0.0)
    width = float(np.median(squares[np.triu_indices(n + m, k=1)])) or float(squares.mean())
    kernel = np.exp(-squares / (2.0 * width or 1.0))
    np.fill_diagonal(kernel, 0.0)
    name = hashlib.blake2b(repr((0, "mmd", n, m)).encode(), digest_size=8).digest()
    draws = np.random.default_rng(int.from_bytes(name, "little") >> 1)
    splits = np.zeros((1000, n + m))
    splits[0, :n] = 1.0
    for split in splits[1:]:
        split[draws.permutation(n + m)[:n]] = 1.0
    within = splits @ kernel
    one, across = (within * splits).sum(axis=1), (within * (1.0 - splits)).sum(axis=1)
    two = kernel.sum() - one - 2.0 * across
    result = one / (n * (n - 1)) + two / (m * (m - 1)) - 2.0 * across / (n * m)
    return (1 + int((result[1:] >= result[0] - 1e-12).sum())) / len(splits)
