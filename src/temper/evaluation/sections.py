"""Settings that every perspective may read, and what those of a perspective are built on."""

from __future__ import annotations

from collections.abc import Container
from typing import Annotated, Any, Literal, Self, TypeVar, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Merge = Literal["sum", "argmax"]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]


class Listing(BaseModel):
    """Frozen settings in which one value stands for a list of one, and none stands twice."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any, field: ValidationInfo) -> Any:
        """Take ``--set evaluate.embedding_attack.radii=0.1`` for a list of one."""
        listed = get_origin(cls.model_fields[field.field_name or ""].annotation) is tuple
        alone = isinstance(value, str | int | float) and not isinstance(value, bool)
        return (value,) if listed and alone else value

    @field_validator("*")
    @classmethod
    def _distinct(cls, values: Any) -> Any:
        if isinstance(values, tuple) and not values:
            raise ValueError("must name at least one")
        if isinstance(values, tuple) and len(set(values)) != len(values):
            raise ValueError(f"must not name one twice, got {list(values)}")
        return values


class PerspectiveSettings(Listing):
    """Settings of one perspective: a section of ``evaluate`` under its name."""


_Settings = TypeVar("_Settings", bound=BaseModel)


class CommonSettings(Listing):
    """Settings that every perspective may read.

    Args:
        perspectives: What is measured.
        attack_rows: Rows of dev that are attacked, noised, corrupted, perturbed and measured for
            smoothness, chosen by hash; None is all.
        merge: How three NLI classes answer a set with two (evaluation.md): ``sum`` adds the
            probabilities of neutral and contradiction first, ``argmax`` decides among three
            (RoAST).
        batch_size: Rows of a forward pass, >= 1; changes no result.
        bootstrap: Resamples behind each interval without a closed form, >= 0; 0 gives no
            intervals at all.
        seed: Seed of every draw.
    """

    perspectives: tuple[str, ...]
    attack_rows: int | None = Field(default=None, ge=1)
    merge: Merge = "sum"
    batch_size: int = Field(default=32, ge=1)
    bootstrap: int = Field(default=1000, ge=0)
    seed: int = 0

    def section(self, name: str, kind: type[_Settings]) -> _Settings:
        """Return the settings of a perspective, those by default where none were given.

        Args:
            name: The perspective's name.
            kind: Its settings' class.
        """
        given = (self.model_extra or {}).get(name)
        return given if isinstance(given, kind) else kind()

    def without(self, names: Container[str]) -> Self:
        """Return the same settings without some perspectives."""
        kept = tuple(name for name in self.perspectives if name not in names)
        return self.model_copy(update={"perspectives": kept})
