"""What a paper, or its released code, gives a setting: kept with the method, shown beside ours."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """A published value of a setting.

    Args:
        value: It as a reader writes it; several where the paper tries or gives several.
        where: Equation, section or table of the paper, or file of the released code; empty where
            it is known to be the paper's and the place is not.
    """

    value: str
    where: str = ""

    def __str__(self) -> str:
        """Return the value with its source."""
        return f"{self.value} ({self.where})" if self.where else self.value
