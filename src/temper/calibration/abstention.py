"""When a model shall rather not answer: the rules of ``temper predict --abstain``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from temper.errors import SettingError, percent_hint
from temper.functional.conformal import BooleanArray
from temper.functional.resampling import FloatArray

_SET = re.compile(r"set\s*>\s*(\d+)")


@dataclass(frozen=True)
class Abstention:
    """Rules to abstain by; without any every text is answered.

    Args:
        anomaly: Whether on texts that are flagged as anomalies.
        largest_set: On texts whose prediction set is larger, or empty; None for no such rule.
        max_risk: Abstain below the confidence from which on answers are shown to be wrong at this
            rate at most; None for no such rule.
    """

    anomaly: bool = False
    largest_set: int | None = None
    max_risk: float | None = None

    @classmethod
    def of(cls, rules: str | None, max_risk: float | None = None) -> Abstention:
        """Read the rules ``anomaly`` and ``set>K``, K >= 1, with commas between.

        ``max_risk`` is in (0, 1). A rule that is unknown or repeated raises a `SettingError`.

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
                    f"`abstain` takes 'anomaly' and 'set>K' with commas between, each once and K "
                    f">= 1, got {rule!r} in {rules!r}."
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
        """Return for each rule and row why there is no answer; empty if there is one.

        Keys are ``anomaly``, ``set`` and ``confidence``, if there is a rule. ``needed`` is the
        lowest confidence at which a text is answered.

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
            result["confidence"] = [low if each < needed else "" for each in confidence.tolist()]
        return result
