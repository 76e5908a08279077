"""The rules of ``temper predict --abstain``: which texts get no prediction."""

from __future__ import annotations

import re
from dataclasses import dataclass

from temper.errors import SettingError, percent_hint
from temper.functional.conformal import BooleanArray
from temper.functional.resampling import FloatArray

_SET = re.compile(r"set\s*>\s*(\d+)")


@dataclass(frozen=True)
class Abstention:
    """Rules for which texts a model abstains on; by default on none.

    Args:
        anomaly: Whether to abstain on texts that are flagged as anomalies.
        largest_set: Abstain if the prediction set is empty or has more classes; None: no limit.
        max_risk: Maximum error rate of the accepted texts: abstain on less confident ones (see
            `Calibration.confident`). None: no limit.
    """

    anomaly: bool = False
    largest_set: int | None = None
    max_risk: float | None = None

    @classmethod
    def of(cls, rules: str | None, max_risk: float | None = None) -> Abstention:
        """Parse comma-separated rules: ``anomaly`` and ``set>K`` with K >= 1.

        ``max_risk`` is in (0, 1). An unknown or repeated rule raises a `SettingError`.

        Example:
            >>> Abstention.of("anomaly, set>2")
            Abstention(anomaly=True, largest_set=2, max_risk=None)
        """
        if max_risk is not None and not 0.0 < max_risk < 1.0:
            came = f"{max_risk:g}{percent_hint(max_risk)}"
            raise SettingError(f"`max_risk` must be a fraction in (0, 1), got {came}.")
        anomaly, largest = False, None
        for rule in [] if rules is None else [part.strip() for part in rules.split(",")]:
            size = _SET.fullmatch(rule)
            if rule == "anomaly" and not anomaly:
                anomaly = True
            elif size is not None and int(size[1]) >= 1 and largest is None:
                largest = int(size[1])
            else:
                raise SettingError(
                    f"`abstain` must be 'anomaly', 'set>K' (K >= 1) or both, separated by a comma, "
                    f"got {rule!r} in {rules!r}."
                )
        return cls(anomaly, largest, max_risk)

    def __bool__(self) -> bool:
        return self.anomaly or self.largest_set is not None or self.max_risk is not None

    def reasons(
        self,
        *,
        flagged: BooleanArray | None,
        in_sets: BooleanArray | None,
        confidence: FloatArray | None,
        needed: float | None,
    ) -> dict[str, list[str]]:
        """Return why the model abstains: rule -> one reason per row, empty if it does not.

        The rules are ``anomaly``, ``set`` and ``confidence``. ``needed`` is the lowest confidence
        at which a prediction is accepted.

        Example:
            >>> import numpy as np
            >>> sizes = np.asarray([[True, False], [True, True], [False, False]])
            >>> Abstention(largest_set=1).reasons(
            ...     flagged=None, in_sets=sizes, confidence=None, needed=None
            ... )
            {'set': ['', 'set of 2', 'empty set']}
        """
        result: dict[str, list[str]] = {}
        if self.anomaly and flagged is not None:
            result["anomaly"] = ["anomaly" if flag else "" for flag in flagged.tolist()]
        if self.largest_set is not None and in_sets is not None:
            sizes = in_sets.sum(axis=1).tolist()
            kept = range(1, self.largest_set + 1)
            result["set"] = [
                "" if size in kept else f"set of {size}" if size else "empty set" for size in sizes
            ]
        if needed is not None and confidence is not None:
            low = f"confidence below {needed:.4g}"
            result["confidence"] = [low if item < needed else "" for item in confidence.tolist()]
        return result
