"""Settings that all perspectives share, and the base of the settings of each."""

from __future__ import annotations

from collections.abc import Container
from typing import Annotated, Any, Literal, Self, TypeVar, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from temper.evaluation.predictor import Precision

Merge = Literal["sum", "argmax"]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=1)]


class PerspectiveSettings(BaseModel):
    """Base of the settings of a perspective, which are in ``evaluate`` under its name.

    A single value is accepted for a list. Lists must not repeat a value.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any, field: ValidationInfo) -> Any:
        """Accept a single value for a list, as in ``--set evaluate.embedding_attack.radii=0.1``."""
        listed = get_origin(cls.model_fields[field.field_name or ""].annotation) is tuple
        alone = isinstance(value, str | int | float) and not isinstance(value, bool)
        return (value,) if listed and alone else value

    @field_validator("*")
    @classmethod
    def _distinct(cls, values: Any, field: ValidationInfo) -> Any:
        if values == () and cls.model_fields[field.field_name or ""].default != ():
            raise ValueError("must have at least one value")
        if isinstance(values, tuple) and len(set(values)) != len(values):
            raise ValueError(f"must not repeat a value, got {list(values)}")
        return values


_Settings = TypeVar("_Settings", bound=BaseModel)


class CommonSettings(PerspectiveSettings):
    """Settings that all perspectives share."""

    perspectives: tuple[str, ...] = Field(description="Perspectives to measure.")
    attack_rows: int | None = Field(
        default=None,
        ge=1,
        description="Dev rows to attack, corrupt or measure for smoothness, chosen by hash. "
        "Default: all.",
    )
    merge: Merge = Field(
        default="sum",
        description="How a model with three NLI classes predicts a set with two labels: `sum` adds "
        "the probabilities of neutral and contradiction first, `argmax` decides among "
        "three (RoAST).",
    )
    batch_size: int = Field(
        default=32, ge=1, description="Rows of a forward pass; does not change the results."
    )
    precision: Precision = Field(
        default="fp32",
        description="Precision of a checkpoint's forward passes: `fp32` keeps that of the "
        "weights, `bf16` is mixed precision. Jacobians, Hessians and word swaps are "
        "always computed in fp32.",
    )
    bootstrap: int = Field(
        default=1000,
        ge=0,
        description="Bootstrap resamples of each interval without a closed form; 0 computes no "
        "intervals.",
    )
    seed: int = Field(default=0, description="Seed of every random draw.")

    def section(self, name: str, kind: type[_Settings]) -> _Settings:
        """Return the settings of the perspective ``name``, of class ``kind``, else defaults."""
        given = (self.model_extra or {}).get(name)
        return given if isinstance(given, kind) else kind()

    def without(self, names: Container[str]) -> Self:
        kept = tuple(name for name in self.perspectives if name not in names)
        return self.model_copy(update={"perspectives": kept})
