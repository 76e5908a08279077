"""Fit a temperature for each of several labels, and choose their thresholds or that of class 1.

Names are those of the labels, for what is reported. Letters: n rows, L labels; L is 1 for two
classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from temper.display.wording import plural
from temper.errors import DataError, shortened
from temper.functional.calibration import fit_temperature
from temper.functional.decisions import choose_threshold
from temper.functional.resampling import FloatArray

RARE = 10
"""Rows with a label below which a notice says that what is fitted for it is uncertain."""


def label_temperatures(
    applies: FloatArray, logits: FloatArray, names: Sequence[str]
) -> tuple[tuple[float, ...], list[str]]:
    """Return the temperature of each label with the least NLL, and notices.

    Args:
        applies: 1 where a label applies, else 0, [n, L].
        logits: [n, L].
        names: Of the labels.

    Returns:
        Temperatures, 1 where none is optimal, L of them; and what to report.
    """
    found: list[float] = []
    failed, notices = [], []
    for name, truth, own in zip(names, applies.T, logits.T, strict=True):
        try:
            # The sigmoid of z is the softmax of (0, z).
            both = np.column_stack([np.zeros(len(own)), own])
            found.append(fit_temperature(truth, both).value)
        except ValueError:
            found.append(1.0)
            failed.append(name)
    if failed:
        notices.append(
            f"No temperature is optimal for {_listed(failed)}: all rows are right, or the label is "
            "no likelier where it applies. Temperature 1 is kept."
        )
    if rare := [n for n, count in zip(names, applies.sum(axis=0), strict=True) if count < RARE]:
        notices.append(
            f"Fewer than {RARE} of the {plural(len(applies), 'row')} that are fitted on have the "
            f"label {_listed(rare)}: its temperature and threshold are uncertain."
        )
    return tuple(found), notices


def choose_thresholds(
    applies: FloatArray, probabilities: FloatArray, names: Sequence[str], *, rule: str
) -> tuple[tuple[float, ...], list[str]]:
    """Return the best threshold of each label by a rule, and notices.

    Args:
        applies: 1 where a label applies, else 0, [n, L].
        probabilities: [n, L].
        names: Of the labels.
        rule: As `temper.functional.decisions.parse_rule` takes it.

    Returns:
        Thresholds, 0.5 where the rule chooses none, L of them; and what to report.

    Raises:
        DataError: It chooses none for any label.
    """
    found: list[float] = []
    failed: dict[str, str] = {}
    for name, truth, own in zip(names, applies.T, probabilities.T, strict=True):
        try:
            found.append(choose_threshold(truth, own, rule))
        except ValueError as error:
            found.append(0.5)
            failed[name] = str(error)
    why = next(iter(failed.values()), "")
    if len(failed) == len(found):
        raise DataError(
            f"No threshold can be chosen by {rule!r} on {plural(len(applies), 'row')}: {why}. Give "
            "more rows, or others, with --data, or another rule with --threshold."
        )
    if not failed:
        return tuple(found), []
    return tuple(found), [
        f"No threshold can be chosen by {rule!r} for {_listed(list(failed))}: {why}. 0.5 is kept."
    ]


def _listed(names: Sequence[str]) -> str:
    return shortened(", ".join(map(repr, names)), longest=200)
