"""Stop the service under load without losing requests: ``python -m dev.drills.restarts``.

Clients send requests continuously, and SIGTERM is sent at a random time. The service must exit with
143 and report the numbers of accepted and completed requests. Both must equal the number of replies
of the clients, and every reply must be complete. A refused request (no connection, or one that was
closed before a reply) was not accepted, and is sent again. Then the service starts again at the
same port. A stop counts as under load if clients were refused after it, because then requests were
pending.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from dev.drills.commands import SECONDS, Child, make_project
from dev.drills.drilling import Found, drilled
from dev.drills.serving import HOST, counted, free_port, wait_until_it_listens

CLIENTS = 16
LONGEST = 1.0
"""Range of seconds between the first reply and SIGTERM."""


@dataclass(frozen=True)
class Target:
    """Configuration of the service.

    Args:
        name: Name of the target.
        options: Options of ``temper serve``.
    """

    name: str
    options: str


TARGETS = (
    Target(
        "small batches",
        "--set service.window_ms=1 --set service.batch_rows=4 --set service.queue_rows=400",
    ),
    Target(
        "a queue that is often full",
        "--set service.window_ms=20 --set service.batch_rows=8 --set service.queue_rows=16",
    ),
)


@dataclass
class Clients:
    """Threads that send requests until they are stopped.

    Args:
        port: Port of the service.
        seed: Seed of the texts.
    """

    port: int
    seed: str
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)
    responded: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._ask, args=(index,), daemon=True)
            for index in range(CLIENTS)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let each thread finish its request."""
        self.stopped.set()
        for thread in self._threads:
            thread.join(SECONDS)
            if thread.is_alive():
                self.faults.append("a client still waits for its reply")

    def _ask(self, number: int) -> None:
        draws = random.Random(f"{self.seed} {number}")
        connection: http.client.HTTPConnection | None = None
        while not self.stopped.is_set():
            texts = [f"word{draws.randrange(90)}" for _ in range(draws.randint(1, 6))]
            try:
                connection = connection or http.client.HTTPConnection(
                    HOST, self.port, timeout=SECONDS
                )
                ending = self._asked(connection, texts)
            except (OSError, http.client.HTTPException) as error:
                ending = "refused"
                if isinstance(error, TimeoutError | http.client.IncompleteRead):
                    self.faults.append(f"a reply was not complete: {error!r}")
                if connection is not None:
                    connection.close()
                connection = None
                time.sleep(0.01)
            with self._lock:
                self.counts[ending] += 1
        if connection is not None:
            connection.close()

    def _asked(self, connection: http.client.HTTPConnection, texts: list[str]) -> str:
        kind = {"Content-Type": "application/json"}
        connection.request("POST", "/predict", json.dumps({"texts": texts}), kind)
        reply = connection.getresponse()
        content = json.loads(reply.read())
        if reply.status == 200:
            self.responded.set()
            if len(content["predictions"]) != len(texts):
                self.faults.append(
                    f"{len(content['predictions'])} predictions for {len(texts)} texts"
                )
        elif reply.status != 429:
            self.faults.append(f"{reply.status}: {content}")
        return str(reply.status)


def drill(project: Path, target: Target, *, inputs: int, seed: int) -> Found:
    """Restart the service under load, many times.

    Args:
        project: The folder of `make_project`.
        target: Configuration of the service.
        inputs: Number of restarts.
        seed: Seed of the times and the texts.
    """
    result, port = Found(), free_port()
    arguments = f"serve {project}/run --device cpu --port {port} {target.options}".split()
    for number in range(inputs):
        draws = random.Random(f"{seed} {target.name} {number}")
        service = Child(arguments, project)
        wait_until_it_listens(port, service.is_running)
        clients = Clients(port, f"{seed} {target.name} {number}")
        if not clients.responded.wait(SECONDS):
            result.fault(number, target.name, "the service did not respond")
        time.sleep(draws.uniform(0, LONGEST))
        os.kill(service.pid, signal.SIGTERM)
        ended = service.wait()
        clients.stop()
        for fault in _faults(ended.code, ended.said, clients):
            result.fault(number, target.name, fault)
        # Requests are refused only after SIGTERM; before it the service listens.
        result.count(
            "stopped under load" if clients.counts["refused"] else "stopped after the load"
        )
    return result


def _faults(code: int, message: str, clients: Clients) -> list[str]:
    faults = list(clients.faults)
    if code != 128 + signal.SIGTERM or "Traceback" in message:
        faults.append(f"ended with {code}:\n{message}")
    got = clients.counts["200"]
    if counted(message) != (got, got):
        faults.append(f"clients got {got} replies:\n{message}")
    return faults


def main() -> int:
    """Run the drill on all targets, or the given ones, and print the results."""
    return drilled(__doc__, TARGETS, make_project, drill, inputs=50)


if __name__ == "__main__":
    sys.exit(main())
