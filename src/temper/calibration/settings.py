"""Settings of a calibration; importable without torch."""

from __future__ import annotations

from typing import Annotated, Literal, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator

from temper.errors import SettingError, unknown
from temper.functional.decisions import parse_rule

OpenFraction = Annotated[float, Field(gt=0, lt=1)]
Within = Literal["all", "class"]
Backend = Literal["torch", "int8"]
"""Backends: the checkpoint in PyTorch, or its 8-bit copy in ONNX Runtime."""
MEASURES = {
    "nll": "NLL",
    "ece_15": "ECE",
    "classwise_ece": "class-wise ECE",
    "entity_ece": "ECE of entities",
}
"""Calibration errors in ``calibration.json``: name -> display name."""


def known_backend(name: str) -> Backend:
    if name not in get_args(Backend):
        raise SettingError(unknown("backend", name, get_args(Backend)))
    return cast(Backend, name)


class CalibrationSettings(BaseModel):
    """Settings of ``temper calibrate``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    coverage: tuple[OpenFraction, ...] = Field(
        default=(0.9, 0.95),
        min_length=1,
        description="Target coverage of prediction sets, or of intervals for a regression; for "
        "several labels per text, the expected fraction of a text's labels in its set. The first "
        "value is the default of `temper predict`.",
    )
    by: Within = Field(
        default="all",
        description="Guarantee the coverage over `all` rows, or for each true `class` or label.",
    )
    threshold: str | None = Field(
        default=None,
        description="Rule by which to choose the probability above which each of several labels, "
        "or class 1 of two, is predicted: `f1`, `recall=R`, `precision=P` or `cost=FP:FN` (costs "
        "of a false positive and a false negative). Default: predict above 0.5.",
    )
    false_alarms: OpenFraction = Field(
        default=0.05,
        description="Fraction of in-distribution texts that may be flagged as OOD.",
    )
    fit_rows: int | None = Field(
        default=None,
        ge=1,
        description="Rows to fit the temperature on; the other rows set the thresholds. Default: "
        "half of the rows, at most 2000.",
    )

    @field_validator("threshold")
    @classmethod
    def _known_rule(cls, value: str | None) -> str | None:
        if value is not None:
            parse_rule(value)
        return value
