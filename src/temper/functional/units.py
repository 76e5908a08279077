"""How scores are written: unit, scale and digits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from temper.errors import SettingError

_POINTS = 100.0
ABSENT = "\u2013"  # en dash: a number that does not exist


@dataclass(frozen=True)
class Unit:
    """How a score is written.

    Args:
        scale: Factor from the stored to the displayed number.
        decimals: Digits after the decimal point.
        sign: Symbol of the unit; empty for a plain number.
        significant: Number of significant digits, used instead of ``decimals`` for scores of very
            different sizes.
    """

    scale: float
    decimals: int
    sign: str
    significant: int | None = None

    def with_sign(self, text: str) -> str:
        """Append the unit's symbol to a formatted number.

        Example:
            >>> (
            ...     PERCENT.with_sign("37"),
            ...     HUNDREDTHS.with_sign("45.2"),
            ...     Unit(1, 1, "ms").with_sign("3"),
            ... )
            ('37%', '45.2 (× 100)', '3 ms')
        """
        if self.sign in ("", "%"):
            return f"{text}{self.sign}"
        return f"{text} {self.sign}" if self.sign[0].isalpha() else f"{text} ({self.sign})"

    def margin(self, points: float) -> float | None:
        """Convert points (1 point is 0.01) to a difference of stored scores.

        None if the score is not displayed on a scale of 100.
        """
        return points / self.scale if self.scale == _POINTS else None

    def text(self, value: float | None, *, signed: bool = False) -> str:
        """Format a stored score for display, as a dash if it is None.

        The minus sign is as wide as a plus, so decimals align.
        """
        if value is None:
            return ABSENT
        shown = value * self.scale
        digits = f".{self.significant}g"
        if self.significant is None:
            shown, digits = round(shown, self.decimals), f".{self.decimals}f"
        # Adding 0.0 turns -0.0 into 0.0, so a difference of 0 has no minus sign.
        return f"{shown + 0.0:{'+' if signed else ''}{digits}}".replace("-", "\u2212")


MARGIN = 0.5
"""Default margin of equivalence tests, in points (1 point is 0.01)."""
PERCENT = Unit(100.0, 1, "%")
HUNDREDTHS = Unit(100.0, 1, "\u00d7 100")
PLAIN = Unit(1.0, 4, "")
ANY_SIZE = Unit(1.0, 4, "", significant=3)


def check_detect(points: float | None) -> None:
    """Raise a `SettingError` unless ``points`` is None or finite and > 0."""
    if points is not None and not 0.0 < points < math.inf:
        raise SettingError(f"`detect` must be a finite number of points > 0, got {points}.")


def check_margin(points: float) -> None:
    """Raise a `SettingError` unless ``points`` is finite and >= 0."""
    if not 0.0 <= points < math.inf:
        raise SettingError(
            f"`margin` must be a finite number of points >= 0, got {points}. Use 0 for no margin."
        )
