"""A service in a thread, and clients that send requests over a socket."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from temper.calibration.classifier import Classifier, Terms
from temper.evaluation.function import CallablePredictor
from temper.service.run import address_of, bind, server_of
from temper.service.settings import ServiceSettings
from temper.service.web import Service

SECONDS = 60.0
"""Longer than any test takes, so that a test that hangs fails."""


def share_of(text: str) -> float:
    """Return the probability that `Model` gives a text for "yes": a number of its own."""
    return (int.from_bytes(text.encode()[-3:], "big") % 997) / 997


@dataclass
class Model:
    """A model that notes what it was asked together, and waits where it is held."""

    batches: list[list[Any]] = field(default_factory=list)
    go: threading.Event = field(default_factory=threading.Event)
    busy: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.go.set()

    def __call__(self, texts: Sequence[Any]) -> list[list[float]]:
        self.batches.append(list(texts))
        self.busy.set()
        assert self.go.wait(SECONDS)
        if any("poison" in text for text in texts):
            raise RuntimeError("poisoned")
        fractions = [share_of(text if isinstance(text, str) else "|".join(text)) for text in texts]
        return [[1 - fraction, fraction] for fraction in fractions]

    def classifier(self) -> Classifier:
        names = ("no", "yes")
        return Classifier(CallablePredictor(self, gives="probabilities", label_names=names))


@dataclass(frozen=True)
class Reply:
    """A response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def content(self) -> Any:
        return json.loads(self.body)


@dataclass
class Client:
    """Ask a service at an address."""

    host: str
    port: int

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=SECONDS)
        try:
            connection.request(method, path, body, dict(headers or {}))
            came = connection.getresponse()
            named = {name.lower(): value for name, value in came.getheaders()}
            return Reply(came.status, named, came.read())
        finally:
            connection.close()

    def predict(self, content: Any, **headers: str) -> Reply:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return self.ask("POST", "/predict", body, {"Content-Type": "application/json", **headers})

    def metrics(self) -> dict[str, float]:
        lines = self.ask("GET", "/metrics").body.decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}


@dataclass
class Running:
    """A service that runs."""

    service: Service
    client: Client
    end: Callable[[], None]


@contextmanager
def running(
    classifier: Classifier,
    *,
    terms: Terms | None = None,
    token: str | None = None,
    **settings: Any,
) -> Iterator[Running]:
    """Run a service in a thread until the context ends."""
    config = ServiceSettings(port=0, **settings)
    service = Service(classifier, config, terms, token=token)
    with bind(config, token=token) as bound:
        server = server_of(service)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        host, _, port = address_of(bound).removeprefix("http://").rpartition(":")

        def end() -> None:
            server.should_exit = True

        bound.listen()
        thread.start()
        try:
            yield Running(service, Client(host, int(port)), end)
        finally:
            end()
            thread.join(SECONDS)
            assert not thread.is_alive()


def together(count: int, act: Callable[[int], Any]) -> list[Any]:
    """Call in as many threads at once, and return what each returned."""
    result: list[Any] = [None] * count

    def one(index: int) -> None:
        result[index] = act(index)

    threads = [threading.Thread(target=one, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    return result
