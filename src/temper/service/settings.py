"""Settings of the service; read without torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]


class ServiceSettings(BaseModel):
    """Settings of the service: address, batches and limits."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="Address to listen on; any address other than this machine's own requires a "
        "token (TEMPER_TOKEN).",
    )
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 uses a free one.")
    window_ms: float = Field(
        5.0,
        ge=0,
        le=10_000,
        description="Milliseconds that the first request of a batch waits for others.",
    )
    batch_rows: Count = Field(
        default=64,
        description="Maximum number of texts of a batch; a larger request is a separate batch.",
    )
    queue_rows: Count = Field(
        default=1024,
        description="Maximum number of waiting texts; further requests get status 429.",
    )
    request_rows: Count = Field(default=256, description="Maximum number of texts of a request.")
    text_characters: Count = Field(
        default=20_000, description="Maximum number of characters of a text."
    )
    body_bytes: Count = Field(
        default=1_000_000, description="Maximum number of bytes of a request body."
    )
    body_seconds: float = Field(
        10.0, gt=0, description="Timeout for receiving a request body, in seconds."
    )
    connections: Count = Field(
        default=512, description="Maximum number of connections; further ones get status 503."
    )
    shift_rows: int = Field(
        200,
        ge=20,
        description="Window of the shift monitor: predicted texts of all clients that are "
        "compared with held-out rows at once.",
    )
    stop_seconds: float = Field(
        60.0, gt=0, description="Timeout for pending requests at shutdown, in seconds."
    )
