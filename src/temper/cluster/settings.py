"""Settings of a Ray cluster; importable without Ray."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _whole_or_part(gpus: float) -> float:
    if gpus > 1 and gpus % 1:
        raise ValueError("must be a whole number or a fraction of one GPU")
    return gpus


class ClusterSettings(BaseModel):
    """Address of a Ray cluster, and the resources of one run on it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    address: str | None = Field(
        None, description="Ray cluster: `auto`, HOST:PORT or ray://HOST:PORT. Default: no cluster."
    )
    cpus: int = Field(1, ge=1, description="CPU cores that each run reserves.")
    gpus: Annotated[float, Field(ge=0), AfterValidator(_whole_or_part)] = Field(
        0.0, description="GPUs that each run reserves; a fraction lets several runs share one."
    )
