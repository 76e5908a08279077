"""The service as an application of FastAPI: questions in, answers out, and what went on between.

A question is read and checked by pydantic from the bytes that came, within the limits of
`ServiceSettings`; the model answers in the thread of the `Batcher`. Whatever comes, the answer is
JSON: ``answers``, or ``error`` with one message.
"""

from __future__ import annotations

import asyncio
import html
import json
import logging
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    MutableMapping,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from hmac import compare_digest
from ipaddress import ip_address
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException

from temper import __version__
from temper.calibration.answers import Answer
from temper.calibration.classifier import Classifier, Terms
from temper.data.examples import Examples
from temper.errors import DataError, SettingError, shortened
from temper.evaluation.loading import check_pairs
from temper.service.batching import Batcher, QueueFullError
from temper.service.metrics import CONTENT_TYPE, Metrics
from temper.service.settings import ServiceSettings
from temper.service.window import ShiftWindow

LOG = logging.getLogger("temper.serve")
OPEN = ("/health",)
"""Paths that need no token."""
PREDICT = "/predict"
KNOWN = (PREDICT, "/health", "/metrics", "/docs", "/openapi.json")
FAULTS = 3
"""Faults of a question that are told, at most."""
NOTE = "temper.note"
POLICY = "default-src 'none'"
EXAMPLE = """curl http://127.0.0.1:8000/predict \\
    --header 'Content-Type: application/json' --data '{"texts": ["a film to remember"]}'"""
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Question(BaseModel):
    """What `/predict` is asked."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    texts: list[str] = Field(min_length=1, description="The texts.")
    text_pairs: list[str] | None = Field(
        None, description="The second text of each, for a task of pairs."
    )
    coverage: float | None = Field(
        None, description="How often sets, or intervals, shall hold the truth: a calibrated one."
    )


class Answered(BaseModel):
    """What `/predict` answers: one object a text, with the fields that apply to the model."""

    answers: list[Answer]


class Failed(BaseModel):
    """What every path answers where it does not answer: what was wrong."""

    error: str


Key = tuple[bool, float | None]
"""What the questions of a batch share: whether texts are pairs, and the coverage asked for."""
Row = tuple[str, str | None]
"""A text and its second text."""


class Service:
    """The application, its queue and its counters.

    Args:
        classifier: The model.
        settings: Limits and windows.
        terms: What answers say beside labels, of `Classifier.terms`; None asks for nothing.
        token: What requests must bear; None lets all in that name this machine as their host.

    Raises:
        SettingError: `shift_rows` was set, and the model keeps no held-out rows.
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
        self.terms |= {each: replace(terms, coverage=each) for each in fitted}
        self.window: ShiftWindow | None = None
        if known is not None and known.compared is not None:
            self.window = ShiftWindow(classifier, settings.shift_rows)
        elif "shift_rows" in settings.model_fields_set:
            raise SettingError(
                f"`shift_rows` is of a comparison with held-out rows, and {classifier.name} keeps "
                f"none. Give it some first: temper calibrate {classifier.name} --data ROWS"
            )
        self.accepted = 0
        self.answered = 0
        self.batcher: Batcher[Key, Row, dict[str, Any]] = Batcher(
            self._answer,
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
        async def living(_: FastAPI) -> AsyncIterator[None]:
            self.batcher.start()
            yield
            await self.batcher.stop()

        made = FastAPI(
            title="Temper",
            summary=f"Answers of {self.classifier.name}",
            version=__version__,
            lifespan=living,
            # Their pages load scripts from elsewhere.
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
        )
        failed: dict[int | str, dict[str, Any]] = {
            code: {"model": Failed} for code in (400, 401, 408, 413, 415, 422, 429, 500)
        }
        question = {"application/json": {"schema": Question.model_json_schema()}}
        made.add_api_route(
            PREDICT,
            self.predict,
            methods=["POST"],
            summary="Answer texts.",
            response_model=Answered,
            responses=failed,
            openapi_extra={"requestBody": {"required": True, "content": question}},
        )
        made.add_api_route("/health", self.health, summary="Say whether the service answers.")
        made.add_api_route(
            "/metrics", self.measured, summary="Counters for Prometheus.", response_class=Response
        )
        page = _page(made.openapi())
        made.add_api_route(
            "/docs",
            lambda: HTMLResponse(page, headers={"Content-Security-Policy": POLICY}),
            include_in_schema=False,
        )
        made.add_exception_handler(HTTPException, _told)
        made.add_middleware(_Gate, service=self)
        return made

    async def predict(self, request: Request) -> Response:
        """Answer the texts of a question."""
        question = _read(await self._body(request))
        self._check(question)
        none = [None] * len(question.texts)
        rows = list(zip(question.texts, question.text_pairs or none, strict=True))
        key = question.text_pairs is not None, question.coverage
        try:
            reply = self.batcher.submit(key, rows)
        except QueueFullError as error:
            raise HTTPException(429, str(error), {"Retry-After": str(error.seconds)}) from error
        request.scope[NOTE].accepted = True
        self.accepted += 1
        try:
            answers = await reply
        except DataError as error:
            raise HTTPException(422, str(error)) from error
        except Exception as error:
            LOG.exception("A question was not answered.")
            raise HTTPException(500, f"The model failed: {type(error).__name__}.") from error
        return JSONResponse({"answers": answers})

    async def health(self) -> dict[str, Any]:
        """Say whether the service answers, and how many rows wait."""
        return {
            "status": "ok",
            "model": self.classifier.name,
            "version": __version__,
            "waiting_rows": self.batcher.waiting,
        }

    async def measured(self) -> Response:
        """Return the counters in the form that Prometheus reads."""
        return Response(self.metrics.text(), media_type=CONTENT_TYPE)

    async def _body(self, request: Request) -> bytes:
        """Read a question's bytes, which must be few enough and come soon enough."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            # A page of any site may send a browser's user to plain types without being asked.
            raise HTTPException(415, "Expected Content-Type: application/json.")
        largest, parts, size = self.settings.body_bytes, list[bytes](), 0
        try:
            async with asyncio.timeout(self.settings.body_seconds):
                async for part in request.stream():
                    size += len(part)
                    if size > largest:
                        raise HTTPException(
                            413, f"The body has more than {largest:,} bytes. Send fewer texts."
                        )
                    parts.append(part)
        except TimeoutError as error:
            seconds = self.settings.body_seconds
            raise HTTPException(408, f"The body did not come within {seconds:g} s.") from error
        return b"".join(parts)

    def _check(self, question: Question) -> None:
        """Refuse texts that are too many or too long, and what does not fit them or the model."""
        texts, pairs = question.texts, question.text_pairs
        most, longest = self.settings.request_rows, self.settings.text_characters
        if len(texts) > most:
            raise HTTPException(413, f"Got {len(texts)} texts, at most {most} a request.")
        if pairs is not None and len(pairs) != len(texts):
            raise HTTPException(
                422, f"`text_pairs` has {len(pairs)}, expected one for each of {len(texts)} texts."
            )
        if question.coverage not in self.terms:
            listed = ", ".join(f"{each:g}" for each in self.terms if each is not None)
            raise HTTPException(
                422, f"`coverage` must be one that was calibrated ({listed or 'none was'})."
            )
        known = self.classifier
        try:
            check_pairs(known.name, known.pairs, pairs is not None, rows="the texts")
        except DataError as error:
            raise HTTPException(422, str(error)) from error
        for name, given in (("texts", texts), ("text_pairs", pairs or [])):
            for place, text in enumerate(given):
                if len(text) > longest:
                    raise HTTPException(
                        413,
                        f"`{name}`, place {place}: {len(text):,} characters, at most {longest:,}.",
                    )

    def _answer(self, key: Key, rows: list[Row]) -> list[dict[str, Any]]:
        """Answer a batch; runs in the model's thread."""
        paired, coverage = key
        texts, pairs = (list(column) for column in zip(*rows, strict=True))
        examples = Examples("texts", texts, pairs if paired else None)
        # One client's texts alone are too few to tell a shift by: the window takes those of all.
        answers = self.classifier.answers(examples, self.terms[coverage], compare=False)
        self.metrics.answered(answers)
        if self.window is not None and answers.own is not None and answers.states is not None:
            shift = self.window.add(answers.own, answers.states)
            if shift is not None:
                self.metrics.compared(shift)
        return [answer.record() for answer in answers]


@dataclass
class _Note:
    """What the gate hears of a request.

    Args:
        accepted: Whether its texts were put into the queue.
    """

    accepted: bool = False


class _Gate:
    """Let in who may ask, and count and time what is answered."""

    def __init__(self, app: Callable[..., Awaitable[None]], service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, status, note = time.perf_counter(), 500, _Note()
        scope[NOTE] = note

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)
            if note.accepted and message["type"] == "http.response.body":
                self.service.answered += not message.get("more_body", False)

        try:
            if refusal := self._refusal(scope):
                await refusal(scope, receive, watched)
            elif (scope["method"], scope["path"]) == ("POST", PREDICT):
                # The question is read by hand: FastAPI would only add its own time.
                try:
                    reply = await self.service.predict(Request(scope, receive))
                except HTTPException as error:
                    reply = _error(error.status_code, error.detail, error.headers)
                await reply(scope, receive, watched)
            else:
                await self.app(scope, receive, watched)
        finally:
            path = scope["path"] if scope["path"] in KNOWN else "other"
            self.service.metrics.request(path, status, time.perf_counter() - begin)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = dict(scope["headers"])
        token = self.service.token
        if token is None:
            # A page in a browser here may point its own name at this machine (DNS rebinding).
            host = headers.get(b"host", b"").decode("latin-1")
            name = host.partition("]")[0][1:] if host.startswith("[") else host.partition(":")[0]
            if not is_local(name):
                return _error(400, "The Host that was asked is not this machine's own.")
        elif scope["path"] not in OPEN:
            given = headers.get(b"authorization", b"")
            if not compare_digest(given, b"Bearer " + token.encode()):
                bearer = {"WWW-Authenticate": "Bearer"}
                return _error(401, "Expected Authorization: Bearer TOKEN.", bearer)
        return None


def is_local(host: str) -> bool:
    """Say whether a host is this machine as nobody else can reach it.

    Example:
        >>> is_local("localhost"), is_local("127.0.0.1"), is_local("::1"), is_local("0.0.0.0")
        (True, True, True, False)
    """
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _read(body: bytes) -> Question:
    """Read a question, or say what is wrong with it; what came is not repeated."""
    try:
        return Question.model_validate_json(body)
    except ValidationError as error:
        try:
            body.decode("utf-8")
        except UnicodeDecodeError as wrong:
            said = f"body: Not UTF-8 from byte {wrong.start + 1} on."
            raise HTTPException(400, said) from wrong
        found = error.errors(include_url=False, include_input=False, include_context=False)
        broken = any(fault["type"] == "json_invalid" for fault in found)
        told = [f"{'.'.join(map(str, fault['loc'])) or 'body'}: {fault['msg']}" for fault in found]
        more = f" And {len(told) - FAULTS} more." if len(told) > FAULTS else ""
        said = f"{'; '.join(told[:FAULTS])}.{more}"
        raise HTTPException(400 if broken else 422, shortened(said)) from error


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"error": message}, status, headers)


async def _told(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, error.detail, error.headers)


def _page(schema: Mapping[str, Any]) -> str:
    """Return a page of the interface that loads nothing."""
    lines = "".join(
        f"<tr><td><code>{method.upper()} {path}</code></td><td>{html.escape(one['summary'])}</td>"
        for path, methods in schema["paths"].items()
        for method, one in methods.items()
    )
    example = html.escape(EXAMPLE)
    whole = html.escape(json.dumps(schema, indent=2))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Temper</title>'
        f"<h1>{html.escape(schema['info']['summary'])}</h1><table>{lines}</table>"
        f"<h2>Ask</h2><pre>{example}</pre><h2>OpenAPI</h2><p>Also at "
        f'<a href="openapi.json">openapi.json</a>.</p><pre>{whole}</pre></html>'
    )
