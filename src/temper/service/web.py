"""The FastAPI application of the service, with the limits of `ServiceSettings`.

pydantic checks the body of a request; the model predicts in the thread of the `Batcher`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from hmac import compare_digest
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from temper import __version__
from temper.calibration.classifier import Classifier, Terms
from temper.calibration.predictions import CalibratedPrediction
from temper.data.examples import Examples
from temper.errors import DataError, SettingError, shortened
from temper.evaluation.request import check_pairs
from temper.service.batching import Batcher, QueueFullError
from temper.service.metrics import Metrics, ShiftWindow
from temper.service.settings import ServiceSettings

LOG = logging.getLogger("temper.serve")
LOCAL = ("localhost", "127.0.0.1", "[::1]")
"""Values of the ``Host`` header that always mean this machine."""
PREDICT, HEALTH, METRICS = "/predict", "/health", "/metrics"
KNOWN = (PREDICT, HEALTH, METRICS, "/openapi.json")
FAULTS = 3
"""Maximum number of faults of a body that an error lists."""
ACCEPTED = "temper.accepted"
"""Key in the ASGI scope of a request, set once its texts are in the queue."""
ERRORS = (400, 401, 408, 413, 415, 422, 429, 500)


class PredictRequest(BaseModel):
    """The body of a request to `/predict`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    texts: list[str] = Field(min_length=1, description="The texts.")
    text_pairs: list[str] | None = Field(
        None, description="The second text of each, for a task of pairs."
    )
    coverage: float | None = Field(
        None, description="Coverage of prediction sets or intervals: a value that was calibrated."
    )


class PredictResponse(BaseModel):
    """The response of `/predict`: an object per text, with the fields that the model supports."""

    predictions: list[CalibratedPrediction]


class Failed(BaseModel):
    """The response to a request that is refused or fails."""

    error: str


Key = tuple[bool, float | None]
"""Texts in a batch agree in these: whether they are pairs, and their coverage."""
Row = tuple[str, str | None]
"""A text and its second text."""


class Service:
    """The application, its queue and its counters.

    Args:
        classifier: The model.
        settings: Limits and windows.
        terms: Coverage and abstention rules of the predictions, from `Classifier.terms`.
        token: Token that requests must send; None accepts only requests whose ``Host`` header
            names this machine.

    Raises:
        SettingError: If `shift_rows` is set and the model has no held-out rows.
    """

    def __init__(
        self,
        classifier: Classifier,
        settings: ServiceSettings,
        terms: Terms | None = None,
        *,
        token: str | None = None,
    ) -> None:
        self.classifier, self.settings, self.token = classifier, settings, token
        known, terms = classifier.calibration, terms or classifier.terms()
        fitted = () if known is None or known.rule is None else known.rule.coverage
        self.terms: dict[float | None, Terms] = {None: terms}
        self.terms |= {coverage: replace(terms, coverage=coverage) for coverage in fitted}
        self.window: ShiftWindow | None = None
        if known is not None and known.compared is not None:
            self.window = ShiftWindow(classifier, settings.shift_rows)
        elif "shift_rows" in settings.model_fields_set:
            raise SettingError(
                f"`service.shift_rows` compares texts with held-out rows, but {classifier.name} "
                f"has none. Store some first: temper calibrate {classifier.name} --data ROWS"
            )
        self.accepted = self.completed = 0
        self.batcher = Batcher(
            self._predict,
            length=lambda row: len(row[0]) + len(row[1] or ""),
            window=settings.window_ms / 1000,
            pass_rows=classifier.batch_size or settings.batch_rows,
            batch_rows=settings.batch_rows,
            queue_rows=settings.queue_rows,
        )
        self.metrics = Metrics(waiting=lambda: self.batcher.waiting)
        self.application = self._application()

    def _application(self) -> FastAPI:
        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            self.batcher.start()
            yield
            await self.batcher.stop()

        # The pages of FastAPI load scripts from other sites.
        app = FastAPI(
            title="Temper",
            summary=f"Predictions of {self.classifier.name}",
            version=__version__,
            lifespan=lifespan,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            telemetry={"tracing": False, "metrics": False, "logs": False},
        )
        body = {"application/json": {"schema": PredictRequest.model_json_schema()}}
        # This route responds; that of FastAPI, which only documents it, takes twice the time.
        app.router.routes.insert(0, Route(PREDICT, self.predict, methods=["POST"]))
        app.post(
            PREDICT,
            summary="Predict texts.",
            response_model=PredictResponse,
            responses={status: {"model": Failed} for status in ERRORS},
            openapi_extra={"requestBody": {"required": True, "content": body}},
        )(self.predict)
        app.get(HEALTH, summary="Report that the service responds.")(self.health)
        app.get(METRICS, summary="Counters for Prometheus.", response_class=Response)(
            self.metrics.response
        )
        app.add_exception_handler(HTTPException, _refused)
        if self.token is None:
            # A web page may point its domain at this machine (DNS rebinding).
            host = self.settings.host
            hosts = [*LOCAL, f"[{host}]" if ":" in host else host]
            app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
        app.add_middleware(_TokenAndCounts, service=self)
        return app

    async def predict(self, request: Request) -> Response:
        """Predict the texts of a request."""
        content = _read(await self._body(request))
        self._check(content)
        none = [None] * len(content.texts)
        rows = list(zip(content.texts, content.text_pairs or none, strict=True))
        key = content.text_pairs is not None, content.coverage
        try:
            reply = self.batcher.submit(key, rows)
        except QueueFullError as error:
            raise HTTPException(429, str(error), {"Retry-After": str(error.seconds)}) from error
        request.scope[ACCEPTED] = True
        self.accepted += 1
        try:
            return JSONResponse({"predictions": await reply})
        except DataError as error:
            raise HTTPException(422, str(error)) from error
        except Exception as error:
            LOG.exception("A request failed.")
            message = f"The model failed: {type(error).__name__}. See the server's log."
            raise HTTPException(500, message) from error

    async def health(self) -> dict[str, Any]:
        """Report that the service responds, and how many rows wait."""
        return {
            "status": "ok",
            "model": self.classifier.name,
            "version": __version__,
            "waiting_rows": self.batcher.waiting,
        }

    async def _body(self, request: Request) -> bytes:
        """Read the body within the limits of size and time."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            # Any web page may send plain types from its reader's browser without asking first.
            raise HTTPException(415, "Expected Content-Type: application/json.")
        most, seconds, body = self.settings.body_bytes, self.settings.body_seconds, bytearray()
        try:
            async with asyncio.timeout(seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > most:
                        raise HTTPException(
                            413, f"The body has more than {most:,} bytes. Send fewer texts."
                        )
        except TimeoutError as error:
            raise HTTPException(408, f"The body did not arrive within {seconds:g} s.") from error
        return bytes(body)

    def _check(self, content: PredictRequest) -> None:
        """Raise if texts are too many or too long, or do not fit the model."""
        texts, pairs = content.texts, content.text_pairs
        most, longest = self.settings.request_rows, self.settings.text_characters
        if len(texts) > most:
            raise HTTPException(413, f"Got {len(texts)} texts, at most {most} per request.")
        if pairs is not None and len(pairs) != len(texts):
            raise HTTPException(
                422, f"Pass one of `text_pairs` per text, got {len(pairs)} for {len(texts)} texts."
            )
        if content.coverage not in self.terms:
            listed = ", ".join(f"{coverage:g}" for coverage in self.terms if coverage is not None)
            raise HTTPException(
                422, f"`coverage` must be a value of `temper calibrate` ({listed or 'none'})."
            )
        model = self.classifier
        try:
            check_pairs(model.name, model.pairs, pairs is not None, rows="the texts")
        except DataError as error:
            raise HTTPException(422, str(error)) from error
        for name, given in (("texts", texts), ("text_pairs", pairs or [])):
            for index, text in enumerate(given):
                if len(text) > longest:
                    raise HTTPException(
                        413,
                        f"`{name}`, index {index}: {len(text):,} characters, at most {longest:,}.",
                    )

    def _predict(self, key: Key, rows: list[Row]) -> list[dict[str, Any]]:
        paired, coverage = key
        texts, pairs = (list(column) for column in zip(*rows, strict=True))
        examples = Examples("texts", texts, pairs if paired else None)
        # The window compares the texts of all clients: those of one are too few.
        predictions = self.classifier.predict_examples(
            examples, self.terms[coverage], compare=False
        )
        self.metrics.predicted(predictions)
        if self.window is not None and (result := self.window.add(predictions)) is not None:
            self.metrics.compared(*result)
        return [prediction.record() for prediction in predictions]


class _TokenAndCounts:
    """Require the token, if there is one; count and time all requests."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 500

        async def counted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        token, given = self.service.token, dict(scope["headers"]).get(b"authorization", b"")
        is_open = token is None or scope["path"] == HEALTH
        allowed = is_open or compare_digest(given, f"Bearer {token}".encode())
        try:
            await (self.app if allowed else UNAUTHORIZED)(scope, receive, counted)
            self.service.completed += ACCEPTED in scope
        finally:
            path = scope["path"] if scope["path"] in KNOWN else "other"
            self.service.metrics.request(path, status, time.perf_counter() - begin)


def _read(body: bytes) -> PredictRequest:
    """Parse a body; an error does not repeat its content."""
    try:
        return PredictRequest.model_validate_json(body)
    except ValidationError as error:
        try:
            body.decode("utf-8")
        except UnicodeDecodeError as wrong:
            message = f"body: Not UTF-8 from byte {wrong.start + 1} on."
            raise HTTPException(400, message) from wrong
        faults = error.errors(include_url=False, include_input=False, include_context=False)
        lines = [
            f"{'.'.join(map(str, fault['loc'])) or 'body'}: {fault['msg']}" for fault in faults
        ]
        more = f" And {len(lines) - FAULTS} more." if len(lines) > FAULTS else ""
        status = 400 if any(fault["type"] == "json_invalid" for fault in faults) else 422
        message = shortened(f"{'; '.join(lines[:FAULTS])}.{more}")
        raise HTTPException(status, message) from error


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


UNAUTHORIZED = JSONResponse(
    {"error": "Expected Authorization: Bearer TOKEN."}, 401, {"WWW-Authenticate": "Bearer"}
)
