"""Units and digits of scores."""

from __future__ import annotations

import math
from dataclasses import dataclass

from temper.errors import SettingError

_POINTS = 100.0
ABSENT = "\u2013"  # en dash: a number that does not exist


@dataclass(frozen=True)
class Unit:
    """The unit and digits of a score.

    Args:
        scale: Factor from the stored to the shown number.
        decimals: Digits after the point.
        sign: Unit after the score's name, empty for a bare number.
        significant: Significant digits, instead of ``decimals``, for numbers of very different
            sizes; None otherwise.
    """

    scale: float
    decimals: int
    sign: str
    significant: int | None = None

    def with_sign(self, text: str) -> str:
        """Append the unit to a number.

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
        """Convert points, hundredths of the way from 0 to 1, to a stored difference.

        None if the unit has no points.
        """
        return points / self.scale if self.scale == _POINTS else None

    def text(self, value: float | None, *, signed: bool = False) -> str:
        """Write a stored number, or a dash if there is none.

        A true minus sign is as wide as a plus, so that decimals align.
        """
        if value is None:
            return ABSENT
        shown = value * self.scale
        digits = f".{self.significant}g"
        if self.significant is None:
            shown, digits = round(shown, self.decimals), f".{self.decimals}f"
        # Adding zero turns -0.0 into 0.0, so that no difference has no sign.
        return f"{shown + 0.0:{'+' if signed else ''}{digits}}".replace("-", "\u2212")


MARGIN = 0.5
"""Default margin, in points."""
PERCENT = Unit(100.0, 1, "%")
HUNDREDTHS = Unit(100.0, 1, "\u00d7 100")
PLAIN = Unit(1.0, 4, "")
ANY_SIZE = Unit(1.0, 4, "", significant=3)


def check_detect(points: float | None) -> None:
    """Raise a `SettingError` unless a difference to detect is None or finite and above 0 points."""
    if points is not None and not 0.0 < points < math.inf:
        raise SettingError(f"`detect` must be a finite number of points > 0, got {points}.")


def check_margin(points: float) -> None:
    """Raise a `SettingError` unless a margin is finite and at least 0 points."""
    if not 0.0 <= points < math.inf:
        raise SettingError(
            f"`margin` must be a finite number of points >= 0, got {points}. 0 is no margin."
        )
