"""What a race may take: time on the clock, or trainings on all rows by plain fine-tuning."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from temper.errors import SettingError

_BUDGET = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|runs?)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Budget:
    """What a race may take, its final part counted in.

    Args:
        amount: Seconds, or vanilla runs: trainings on all rows by plain fine-tuning.
        unit: Which of the two.
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
                "--budget is a time or a number of plain trainings (30m, 2h, 12runs), got "
                f"{text!r}."
            )
        if match[2].startswith("run"):
            return cls(float(match[1]), "runs")
        return cls(float(match[1]) * _SECONDS[match[2]], "seconds")

    def text(self, amount: float) -> str:
        """Write an amount in the budget's unit."""
        return f"{amount:.3g} runs" if self.unit == "runs" else f"{amount / 60:.3g} minutes"


@dataclass(frozen=True)
class Pace:
    """How long things take, in the budget's unit.

    Args:
        run: A vanilla run: plain fine-tuning on all rows.
        judging: Judging one model on a fold.
    """

    run: float
    judging: float


IN_RUNS: Final = Pace(1.0, 0.0)
