"""Settings of the service; read without torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]


class ServiceSettings(BaseModel):
    """Where the service listens, how it joins requests, and what it refuses.

    Args:
        host: Address to listen at; anything but this machine's own needs a token (TEMPER_TOKEN).
        port: Port to listen at; 0 takes a free one.
        window_ms: Milliseconds that the first request of a batch waits for others, >= 0.
        batch_rows: Texts that are answered together, at most; one larger request stands alone.
        queue_rows: Texts that may wait; further requests are refused (429) until there is room.
        request_rows: Texts of a request, at most.
        text_characters: Characters of a text, at most.
        body_bytes: Bytes of a request's body, at most.
        body_seconds: Seconds in which a request's body must have come.
        connections: Connections at once, at most; further ones are refused (503).
        shift_rows: Answered texts, of all clients, that are compared with held-out rows at once.
        stop_seconds: Seconds that requests have to be answered in once the service is stopped.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    host: str = Field("127.0.0.1", min_length=1)
    port: int = Field(8000, ge=0, le=65535)
    window_ms: float = Field(5.0, ge=0, le=10_000)
    batch_rows: Count = 64
    queue_rows: Count = 1024
    request_rows: Count = 256
    text_characters: Count = 20_000
    body_bytes: Count = 1_000_000
    body_seconds: float = Field(10.0, gt=0)
    connections: Count = 512
    shift_rows: int = Field(200, ge=20)
    stop_seconds: float = Field(60.0, gt=0)
