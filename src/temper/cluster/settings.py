"""Settings of a Ray cluster; importable without Ray."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _whole_or_part(gpus: float) -> float:
    if gpus > 1 and gpus % 1:
        raise ValueError("must be a whole number or a fraction of one GPU")
    return gpus


class ClusterSettings(BaseModel):
    """A Ray cluster and the resources of one run; see `temper.cluster.machines.Cluster`.

    Without an address, runs are done on this machine.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    address: str | None = None
    cpus: int = Field(1, ge=1)
    gpus: Annotated[float, Field(ge=0), AfterValidator(_whole_or_part)] = 0.0
