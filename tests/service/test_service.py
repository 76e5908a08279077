"""`temper serve`: correct replies under load, and none is lost when it stops."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("prometheus_client", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from temper.errors import SettingError
from temper.service.run import TOKEN, bind, token_of_environment
from temper.service.settings import ServiceSettings
from tests.cli.calls import call, refused
from tests.service.serving import SECONDS, Client, Model, Running, running, share_of, together

SECRET = "a-secret-of-this-test"
LIMITS = {"body_bytes": 4000, "request_rows": 3, "text_characters": 50, "body_seconds": 0.5}


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()


@pytest.fixture(scope="module")
def served(model: Model) -> Iterator[Running]:
    with running(model.classifier(), **LIMITS) as result:
        yield result


@pytest.fixture
def client(served: Running) -> Client:
    return served.client


def held(model: Model) -> None:
    """Let the model wait at the next batch."""
    model.busy.clear()
    model.go.clear()


def eventually(condition: Any) -> None:
    """Wait until something holds."""
    ends = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.005)


def test_predictions_equal_those_of_the_classifier(client: Client, model: Model) -> None:
    texts = ["a film", "\u4f60\u597d \u0000 \u2028", ""]
    result = client.predict({"texts": texts})
    assert result.status == 200
    assert result.content == {"predictions": [each.record() for each in model.classifier()(texts)]}
    paired = client.predict({"texts": ["a", "b"], "text_pairs": ["c", "d"]})
    wanted = [each.record() for each in model.classifier()(["a", "b"], ["c", "d"])]
    assert paired.content["predictions"] == wanted


def test_concurrent_requests_are_batched_and_get_their_own_predictions() -> None:
    model, count = Model(), 64
    with running(model.classifier(), window_ms=500, batch_rows=64) as served:
        rows = [[f"text {n} {k}" for k in range(1 + n % 3)] for n in range(count)]
        replies = together(count, lambda n: served.client.predict({"texts": rows[n]}))
    for texts, reply in zip(rows, replies, strict=True):
        fractions = [each["probabilities"]["yes"] for each in reply.content["predictions"]]
        assert fractions == pytest.approx([share_of(text) for text in texts])
    assert sorted(text for batch in model.batches for text in batch) == sorted(
        text for texts in rows for text in texts
    )
    # 127 texts: as few batches as 64 rows allow, and some more where threads began late.
    assert 2 <= len(model.batches) < count / 2
    assert all(len(batch) <= 64 for batch in model.batches)
    assert (served.service.accepted, served.service.completed) == (count, count)


def test_pairs_and_single_texts_share_no_batch() -> None:
    model = Model()
    with running(model.classifier(), window_ms=200) as served:
        asked = [{"texts": ["a"]}, {"texts": ["b"], "text_pairs": ["c"]}] * 4
        replies = together(len(asked), lambda n: served.client.predict(asked[n]))
    assert [reply.status for reply in replies] == [200] * len(asked)
    assert all(len({type(text) for text in batch}) == 1 for batch in model.batches)


def test_texts_of_another_form_than_the_model_was_trained_on_raise_an_error() -> None:
    classifier = Model().classifier()
    classifier.pairs = False
    with running(classifier) as served:
        result = served.client.predict({"texts": ["b"], "text_pairs": ["c"]})
        assert served.client.predict({"texts": ["b"]}).status == 200
    assert result.status == 422
    assert "trained on single texts" in result.content["error"]


HOSTILE = [
    (b"", 400, "body: Invalid JSON: EOF"),
    (b'{"texts": ["\xff\xfe"]}', 400, "Not UTF-8 from byte 13 on"),
    (b'{"texts": ["\\ud800"]}', 400, "Invalid JSON"),
    (b'{"texts": ["\x07"]}', 400, "control character"),
    (b"[" * 3000, 400, "recursion limit"),
    (b'{"texts": ' + b"[" * 300 + b"]" * 300 + b"}", 400, "recursion limit"),
    (b'{"texts": [NaN]}', 422, "texts.0: Input should be a valid string"),
    (b'{"texts": ["a"], "secret": NaN}', 422, "secret: Extra inputs are not permitted"),
    (b'{"texts": [1e999]}', 422, "texts.0: Input should be a valid string"),
    (b'{"texts": ["a"], "text_pairs": true}', 422, "text_pairs: Input should be a valid"),
    (b'{"texts": [' + b"9" * 3000 + b"]}", 422, "texts.0: Input should be a valid string"),
    (b"null", 422, "body: Input should be an object"),
    (b"{}", 422, "texts: Field required"),
    (b'{"texts": "a"}', 422, "texts: Input should be a valid array"),
    (b'{"texts": []}', 422, "texts: List should have at least 1 item"),
    (b'{"texts": ["a"], "secret": 1}', 422, "secret: Extra inputs are not permitted"),
    (b'{"texts": [1, 2, 3, 4, 5]}', 422, "And 2 more."),
    (
        b'{"texts": ["a", "b"], "text_pairs": ["c"]}',
        422,
        "Pass one of `text_pairs` per text, got 1 for 2",
    ),
    (b'{"texts": ["a", "b", "c", "d"]}', 413, "Got 4 texts, at most 3 per request."),
    (b'{"texts": ["' + b"a" * 51 + b'"]}', 413, "`texts`, index 0: 51 characters, at most 50."),
    (b'{"texts": ["' + b"a" * 5000 + b'"]}', 413, "more than 4,000 bytes"),
]


@pytest.mark.parametrize(("body", "status", "words"), HOSTILE)
def test_hostile_questions_get_one_clear_error_and_the_service_stays_up(
    client: Client, body: bytes, status: int, words: str
) -> None:
    result = client.predict(body)
    assert (result.status, list(result.content)) == (status, ["error"])
    assert words in result.content["error"]
    assert len(result.content["error"]) < 500
    assert client.predict({"texts": ["a"]}).status == 200


def test_unknown_paths_methods_and_types_return_errors(client: Client) -> None:
    assert client.ask("GET", "/predict").content == {"error": "Method Not Allowed"}
    assert client.ask("POST", "/../etc/passwd").status == 404
    plain = client.ask("POST", "/predict", b'{"texts": ["a"]}', {"Content-Type": "text/plain"})
    assert (plain.status, plain.content["error"]) == (
        415,
        "Expected Content-Type: application/json.",
    )


def raw(client: Client, content: bytes) -> bytes:
    """Send bytes and return the response."""
    with socket.create_connection((client.host, client.port), timeout=SECONDS) as connection:
        connection.sendall(content)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
        return b"".join(parts)


def test_an_incomplete_body_times_out(client: Client) -> None:
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    result = raw(client, head + b'Connection: close\r\nContent-Length: 100\r\n\r\n{"texts"')
    assert b" 408 " in result.partition(b"\r\n")[0]
    assert b"did not arrive within 0.5 s" in result


def test_a_body_that_never_ends_is_cut_off(client: Client) -> None:
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    chunks = b"1000\r\n" + b"a" * 4096 + b"\r\n"
    result = raw(client, head + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
    assert b" 413 " in result.partition(b"\r\n")[0]


@pytest.mark.parametrize("content", [b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\nA: b\xff c d"])
def test_an_invalid_http_request_returns_an_error(client: Client, content: bytes) -> None:
    result = raw(client, content + b"\r\n\r\n")
    assert b" 4" in result.partition(b"\r\n")[0]
    assert client.ask("GET", "/health").status == 200


def test_a_failing_text_does_not_affect_other_requests(caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    with running(model.classifier(), window_ms=500) as served:
        texts = ["a", "poison", "b"]
        replies = together(3, lambda n: served.client.predict({"texts": [texts[n]]}))
        assert [reply.status for reply in replies] == [200, 500, 200]
        assert replies[1].content == {
            "error": "The model failed: ModelError. See the server's log."
        }
        assert served.client.predict({"texts": ["c"]}).status == 200
    assert "poisoned" in caplog.text


def test_a_full_queue_returns_retry_after_without_blocking() -> None:
    model = Model()
    with running(model.classifier(), queue_rows=4, window_ms=0) as served:
        held(model)
        asked = []
        for count in (1, 3):
            # The first is at work, the second waits.
            thread = threading.Thread(
                target=lambda n=count: asked.append(served.client.predict({"texts": ["a"] * n}))
            )
            thread.start()
            assert model.busy.wait(SECONDS)
            eventually(lambda n=count: served.service.accepted == (1 if n == 1 else 2))
        full = served.client.predict({"texts": ["b", "c"]})
        assert full.status == 429
        assert int(full.headers["retry-after"]) >= 1
        assert "The queue is full" in full.content["error"]
        assert served.client.ask("GET", "/health").content["waiting_rows"] == 3
        model.go.set()
        eventually(lambda: len(asked) == 2)
        assert served.client.predict({"texts": ["b", "c"]}).status == 200
    assert [reply.status for reply in asked] == [200, 200]


def test_accepted_requests_are_completed_when_the_service_stops() -> None:
    model, count, replies = Model(), 12, []
    with running(model.classifier(), batch_rows=2, window_ms=0) as served:
        held(model)
        threads = [
            threading.Thread(
                target=lambda n=n: replies.append(served.client.predict({"texts": [f"{n}"]}))
            )
            for n in range(count)
        ]
        for thread in threads:
            thread.start()
        eventually(lambda: served.service.accepted == count)
        served.end()
        eventually(lambda: not reachable(served.client))
        model.go.set()
        for thread in threads:
            thread.join(SECONDS)
    assert [reply.status for reply in replies] == [200] * count
    assert served.service.completed == served.service.accepted == count


def reachable(client: Client) -> bool:
    try:
        socket.create_connection((client.host, client.port), timeout=1).close()
    except OSError:
        return False
    return True


def test_requests_without_the_token_return_an_error() -> None:
    with running(Model().classifier(), token=SECRET) as served:
        ask = served.client.predict
        for given in (None, "Bearer ", f"Bearer {SECRET}x", f"Basic {SECRET}", "Bearer \xe9"):
            wrong = {} if given is None else {"Authorization": given}
            result = ask({"texts": ["a"]}, **wrong)
            assert (result.status, result.headers["www-authenticate"]) == (401, "Bearer")
        assert ask({"texts": ["a"]}, Authorization=f"Bearer {SECRET}").status == 200
        assert served.client.ask("GET", "/metrics").status == 401
        assert served.client.ask("GET", "/health").status == 200
        # Behind a proxy any host may be named.
        bearer = {"Authorization": f"Bearer {SECRET}", "Host": "reviews.example"}
        assert ask({"texts": ["a"]}, **bearer).status == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "[::2]:80", ""])
def test_without_a_token_only_this_machine_may_be_named(client: Client, host: str) -> None:
    assert client.predict({"texts": ["a"]}, Host=host).status == 400
    for own in ("localhost:9", "127.0.0.1", "[::1]:8000"):
        assert client.predict({"texts": ["a"]}, Host=own).status == 200


def test_a_public_address_requires_a_token(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    code = tmp_path / "asked.py"
    code.write_text(
        "def ask(texts):\n    return [[0.5, 0.5]] * len(texts)\nask.gives = 'probabilities'\n"
    )
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        refused(call("serve", f"{code}:ask", "--host", host), "TEMPER_TOKEN is not set", host)
    for wrong in ("short", "a secret with spaces in it", "s\u00e9cret-that-is-long"):
        monkeypatch.setenv(TOKEN, wrong)
        with pytest.raises(SettingError, match=f"{TOKEN} must have 16 ASCII characters"):
            token_of_environment()
    monkeypatch.setenv(TOKEN, SECRET)
    assert token_of_environment() == SECRET
    bind(ServiceSettings(host="0.0.0.0", port=0), token=SECRET).close()


def test_a_used_port_raises_an_error_before_the_model_is_loaded(served: Running) -> None:
    port = served.client.port
    refused(call("serve", "nowhere.py:ask", "--port", port), f"port {port}", "another --port")


def test_counters_count_requests_and_texts() -> None:
    model = Model()
    with running(model.classifier(), request_rows=2) as served:
        served.client.predict({"texts": ["a", "b"]})
        served.client.predict({"texts": ["c"]})
        served.client.predict({"texts": ["a"] * 3})
        served.client.ask("GET", "/no/such/path")
        result = served.client.metrics()
    assert result["temper_rows_total"] == 3
    assert result["temper_batch_rows_count"] == 2
    assert result['temper_requests_total{path="/predict",status="200"}'] == 2
    assert result['temper_requests_total{path="/predict",status="413"}'] == 1
    assert result['temper_requests_total{path="other",status="404"}'] == 1
    assert result['temper_request_seconds_count{path="/predict"}'] == 3
    assert result["temper_waiting_rows"] == 0


def test_the_interface_is_described(client: Client) -> None:
    schema = client.ask("GET", "/openapi.json").content
    assert set(schema["paths"]) == {"/predict", "/health", "/metrics"}
    body = schema["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]
    assert set(body["schema"]["properties"]) == {"texts", "text_pairs", "coverage"}
    assert json.loads(client.ask("GET", "/health").body)["status"] == "ok"
