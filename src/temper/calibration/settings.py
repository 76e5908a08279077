"""Settings of a calibration; importable without torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

OpenShare = Annotated[float, Field(gt=0, lt=1)]
Within = Literal["all", "class"]


class CalibrationSettings(BaseModel):
    """What is fitted on held-out rows and kept beside a model.

    Args:
        coverage: How often prediction sets, or intervals of a regression, shall hold the truth; the
            first one is what answers are given at where none is asked for.
        by: Where the coverage holds: over ``all`` rows, or in each true ``class``.
        false_alarms: Share of ordinary rows that may be flagged as anomalies.
        fit_rows: Fit on that many of the rows, drawn by text; the others set the thresholds. None
            takes half of the rows, at most 2000.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    coverage: tuple[OpenShare, ...] = Field(default=(0.9, 0.95), min_length=1)
    by: Within = "all"
    false_alarms: OpenShare = 0.05
    fit_rows: int | None = Field(default=None, ge=1)
