"""Fit a temperature for each of several labels, and choose their thresholds or that of class 1.

Names are those of the labels, for what is reported. Letters: n rows, L labels; L is 1 for two
classes.
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
"""Rows with, or without, a label below which it has no separate temperature."""


def label_temperatures(
    applies: FloatArray, logits: FloatArray, names: Sequence[str]
) -> tuple[tuple[float, ...], list[str]]:
    """Return the temperature of each label with the least NLL, and notices.

    Labels of few rows, and those for which no temperature is optimal, take the best common one of
    all labels: a temperature of a few rows is worse than none.
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
    """Return the best threshold of each label by a rule, and notices.

    A threshold is 0.5 if the rule chooses none.

    Raises:
        DataError: It chooses none for any label.
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
            f"No threshold can be chosen by {rule!r} on {plural(len(applies), 'row')}: {why}. Give "
            "more rows, or others, with --data, or another rule with --threshold."
        )
    if not failed:
        return tuple(result), []
    return tuple(result), [
        f"No threshold can be chosen by {rule!r} for {_listed(list(failed))}: {why}. 0.5 is kept."
    ]


def _listed(names: Sequence[str]) -> str:
    return shortened(", ".join(map(repr, names)), longest=200)
