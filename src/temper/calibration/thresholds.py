"""Temperatures of several labels, and decision thresholds of several labels or of class 1 of two.

``names`` are the labels' names for notices. Letters: n rows, L labels (1 for two classes).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from temper.display.wording import plural
from temper.errors import DataError, shortened
from temper.functional.calibration import fit_temperature
from temper.functional.decisions import choose_threshold
from temper.functional.resampling import FloatArray

RARE = 10
"""Minimum number of rows with, and without, a label to fit a separate temperature for it."""


def label_temperatures(
    applies: FloatArray, logits: FloatArray, names: Sequence[str]
) -> tuple[tuple[float, ...], list[str]]:
    """Fit the temperature of each label by its NLL; return the temperatures, and notices.

    ``applies`` [n, L] is 1 if a label applies. Labels with few rows, or without an optimal
    temperature, use one that is fitted on all labels.
    """
    try:
        common = _temperature(applies.ravel(), logits.ravel())
    except ValueError:
        common = 1.0
    result = []
    shared = []
    for name, truth, label_logits in zip(names, applies.T, logits.T, strict=True):
        temperature = None
        if RARE <= truth.sum() <= len(truth) - RARE:
            with suppress(ValueError):
                temperature = _temperature(truth, label_logits)
        if temperature is None:
            shared.append(name)
        result.append(common if temperature is None else temperature)
    notices = []
    if shared:
        notices.append(
            f"{len(shared)} of {plural(len(names), 'label')} use the common temperature "
            f"{common:.4f}, because fewer than {RARE} of {plural(len(applies), 'row')} have the "
            f"label or lack it, or no temperature fits: {_listed(shared)}."
        )
    return tuple(result), notices


def _temperature(applies: FloatArray, logits: FloatArray) -> float:
    # The sigmoid of z is the softmax of (0, z).
    return fit_temperature(applies, np.column_stack([np.zeros(len(logits)), logits])).value


def choose_thresholds(
    applies: FloatArray, probabilities: FloatArray, names: Sequence[str], *, rule: str
) -> tuple[tuple[float, ...], list[str]]:
    """Choose the decision threshold of each label by a rule; return the thresholds, and notices.

    ``rule`` is as in `CalibrationSettings.threshold`. A label that no threshold fits keeps 0.5.

    Raises:
        DataError: No threshold fits any label.
    """
    result: list[float] = []
    failed: dict[str, str] = {}
    for name, truth, label_probabilities in zip(names, applies.T, probabilities.T, strict=True):
        try:
            result.append(choose_threshold(truth, label_probabilities, rule))
        except ValueError as error:
            result.append(0.5)
            failed[name] = str(error)
    why = next(iter(failed.values()), "")
    if len(failed) == len(result):
        raise DataError(
            f"No threshold can be chosen by {rule!r} on {plural(len(applies), 'row')}: {why}. Pass "
            "other or more rows with --data, or another rule with --threshold."
        )
    if not failed:
        return tuple(result), []
    return tuple(result), [
        f"No threshold can be chosen by {rule!r} for {_listed(list(failed))}: {why}. 0.5 is kept."
    ]


def _listed(names: Sequence[str]) -> str:
    return shortened(", ".join(map(repr, names)), longest=200)
