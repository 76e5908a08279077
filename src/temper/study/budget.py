"""The budget of a search: wall-clock time, or a number of plain fine-tuning runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from temper.errors import SettingError

_BUDGET = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|runs?)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Budget:
    """The budget of a search, including the final comparison.

    Args:
        amount: Seconds, or plain runs: trainings on all rows with plain fine-tuning.
        unit: Unit of the amount.
    """

    amount: float
    unit: Literal["seconds", "runs"]

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read ``--budget``.

        Args:
            text: For example ``30m``, ``2h``, ``90s`` or ``12runs``.

        Raises:
            SettingError: It has another form, or is 0.

        Example:
            >>> Budget.parse("30m"), Budget.parse("12runs")
            (Budget(amount=1800.0, unit='seconds'), Budget(amount=12.0, unit='runs'))
        """
        match = _BUDGET.fullmatch(text.strip().lower())
        if match is None or not float(match[1]):
            raise SettingError(
                f"--budget is a time or a number of plain runs (30m, 2h, 12runs), got {text!r}."
            )
        if match[2].startswith("run"):
            return cls(float(match[1]), "runs")
        return cls(float(match[1]) * _SECONDS[match[2]], "seconds")

    def text(self, amount: float) -> str:
        """Write an amount in words."""
        return f"{amount:.3g} runs" if self.unit == "runs" else f"{amount / 60:.3g} minutes"
