"""Numbers within bounds: the types of settings that many methods have."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, FiniteFloat

Nonnegative = Annotated[FiniteFloat, Field(ge=0.0)]
Positive = Annotated[FiniteFloat, Field(gt=0.0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
PositiveFraction = Annotated[FiniteFloat, Field(gt=0.0, le=1.0)]
Rate = Annotated[float, Field(ge=0.0, lt=1.0)]
"""A fraction that is never 1, such as a dropout rate."""
Count = Annotated[int, Field(ge=1)]
