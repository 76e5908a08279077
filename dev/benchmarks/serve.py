"""Throughput of `temper serve` relative to the model without a service.

Run ``python -m dev.benchmarks.serve``. In one process, 64 clients send one text after another, each
over its own persistent connection. The bare model is `temper.Classifier` in this process, called
with 64 texts at a time and the same batch size. Both predict the same texts of 1 to 100 words;
every block of 64 texts has the same lengths, so equal times are equal work. Both compute in
``--threads`` threads (default: one less than the number of cores). The last core is for the
service's event loop and the clients, because a thread that waits for a busy core delays all others
at the end of each kernel.

Rounds of both alternate. The table has texts per second over all rounds, their ratio (median,
minimum and maximum over rounds), how long a client waits, and the number of requests without a
complete reply. The default model is tiny and shows the cost of the service itself; ``--model
minilm`` is a real one with a random head, and any run can be given. No round starts that would end
after ``--minutes``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import selectors
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, cycle
from pathlib import Path
from statistics import median

import numpy as np
import torch
from rich.console import Console
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from dev.benchmarks.record import write
from dev.drills.serving import HOST, counted, serving
from temper import Classifier
from temper.display.wording import pipe_table
from temper.models.names import MODELS, resolve
from tests.cli.tiny_project import BAD, GOOD, OTHERS, make_model

LONGEST = 100
"""Maximum number of words of a text."""
BLOCKS = 32
"""Number of different blocks of texts; they are sent repeatedly."""
WARM = 1.0
"""Seconds of load before each measurement."""
PATIENCE = 30.0
"""Seconds after which a request without a reply counts as lost."""


def texts_of(clients: int) -> list[str]:
    """Return texts in blocks of ``clients`` texts; all blocks have the same lengths."""
    draws, words = random.Random(0), (*GOOD, *BAD, *OTHERS)
    lengths = np.geomspace(1, LONGEST, clients).round().astype(int).tolist()
    blocks = (draws.sample(lengths, clients) for _ in range(BLOCKS))
    return [" ".join(draws.choices(words, k=length)) for length in chain.from_iterable(blocks)]


def checkpoint_of(model: str | None, folder: Path) -> str:
    """Return the folder that the service loads; a new one for a short name or the tiny model."""
    if model is None:
        return str(make_model(folder / "model"))
    if model not in MODELS:
        return model
    source = resolve(model)
    network = AutoModelForSequenceClassification.from_pretrained(source)
    network.save_pretrained(folder / "model")
    AutoTokenizer.from_pretrained(source).save_pretrained(folder / "model")
    return str(folder / "model")


class Client:
    """One connection and its pending request.

    Args:
        port: Port of the service.
    """

    def __init__(self, port: int) -> None:
        self.connection = socket.create_connection((HOST, port))
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.asked = 0.0
        self.reply = b""

    def ask(self, question: bytes) -> None:
        self.reply, self.asked = b"", time.perf_counter()
        self.connection.sendall(question)

    def status(self) -> int | None:
        """Read the available part of the reply.

        Returns:
            The status of a complete reply, 0 if the connection ended before, otherwise None.
        """
        try:
            part = self.connection.recv(65536)
        except OSError:
            part = b""
        self.reply += part
        head, result, body = self.reply.partition(b"\r\n\r\n")
        size = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        if result and len(body) == int(size):
            return int(head.split()[1])
        return None if part else 0


@dataclass
class Load:
    """Clients that send the next request as soon as they have a reply.

    Args:
        port: Port of the service.
        clients: Number of clients.
        texts: Texts that they send repeatedly.
        asked, completed: Sent and completed requests, including those outside the measured time.
    """

    port: int
    clients: int
    texts: list[str]
    asked: int = 0
    completed: int = 0
    _questions: Iterator[bytes] = field(init=False)

    def __post_init__(self) -> None:
        bodies = [json.dumps({"texts": [text]}).encode() for text in self.texts]
        head = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._questions = cycle(
            f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body for body in bodies
        )

    def run(self, seconds: float) -> list[float]:
        """Send requests for some time, over new connections, since a service closes idle ones.

        Returns:
            Seconds of each reply that arrived within the measured time.
        """
        waits: list[float] = []
        with selectors.DefaultSelector() as selector:
            for _ in range(self.clients):
                client = Client(self.port)
                selector.register(client.connection, selectors.EVENT_READ, client)
                self._ask(client)
            begin = time.perf_counter() + WARM
            while selector.get_map():
                for key, _ in selector.select(PATIENCE) or self._give_up(selector):
                    client, status = key.data, key.data.status()
                    if status is None:
                        continue
                    now = time.perf_counter()
                    self.completed += status == 200
                    if status == 200 and begin <= now < begin + seconds:
                        waits.append(now - client.asked)
                    if status == 200 and now < begin + seconds:
                        self._ask(client)
                    else:
                        selector.unregister(client.connection)
                        client.connection.close()
        return waits

    def _ask(self, client: Client) -> None:
        client.ask(next(self._questions))
        self.asked += 1

    @staticmethod
    def _give_up(selector: selectors.BaseSelector) -> list[tuple[selectors.SelectorKey, int]]:
        """Close all pending connections and return no events."""
        for key in list(selector.get_map().values()):
            selector.unregister(key.fileobj)
            key.data.connection.close()
        return []


class Bare:
    """The model without a service.

    Args:
        model: Model folder.
        texts: Texts that are predicted repeatedly.
        rows: Texts per call.
        batch_size: Rows of a forward pass.
    """

    def __init__(self, model: str, texts: list[str], rows: int, *, batch_size: int) -> None:
        self.classifier = Classifier.load(model, batch_size=batch_size)
        self.calls = cycle([texts[start : start + rows] for start in range(0, len(texts), rows)])

    def run(self, seconds: float) -> float:
        """Predict for some time and return texts per second."""
        self.classifier(next(self.calls))
        begin, done = time.perf_counter(), 0
        while time.perf_counter() < begin + seconds:
            done += len(self.classifier(next(self.calls)))
        return done / (time.perf_counter() - begin)


def main() -> int:
    """Measure, print and save.

    Returns:
        The exit code: 1 if a request was lost.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a run, a checkpoint or a short name; default: a tiny one")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each half of a round")
    parser.add_argument("--minutes", type=float, default=3.0, help="limit of all rounds")
    parser.add_argument("--batch-size", type=int, default=8, help="rows of a forward pass")
    parser.add_argument(
        "--threads",
        type=int,
        default=max(1, (os.cpu_count() or 1) - 1),
        help="threads that compute a forward pass",
    )
    parser.add_argument("--options", default="", help="options of `temper serve`, as one string")
    arguments = parser.parse_args()
    clients, texts, size = arguments.clients, texts_of(arguments.clients), arguments.batch_size
    # OpenMP computes, Rayon tokenizes. In this process OpenMP has started already.
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "RAYON_NUM_THREADS"), str(arguments.threads))
    torch.set_num_threads(arguments.threads)
    console = Console(soft_wrap=True, highlight=False)
    ends = time.monotonic() + 60 * arguments.minutes
    served, bare, waits = list[float](), list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        model = checkpoint_of(arguments.model, Path(folder))
        options = ["--batch-size", str(size), *arguments.options.split()]
        with serving(model, *options) as service:
            load = Load(service.port, clients, texts)
            alone = Bare(model, texts, clients, batch_size=size)
            console.print(f"The service listens; {arguments.threads} threads compute.")
            # A short round warms up both and is not counted.
            load.run(WARM)
            alone.run(WARM)
            for number in range(1, arguments.rounds + 1):
                begin = time.monotonic()
                seen = load.run(arguments.seconds)
                without = alone.run(arguments.seconds)
                served.append(len(seen) / arguments.seconds)
                bare.append(without)
                waits += seen
                console.print(
                    f"Round {number} of {arguments.rounds}: served {served[-1]:.0f} texts/s, bare "
                    f"{without:.0f} texts/s, {load.asked - load.completed} requests lost."
                )
                if 2 * time.monotonic() - begin > ends:
                    break
    if not waits:
        raise SystemExit(f"No request completed in time. Output of the service:\n{service.said}")
    fractions = [one / other for one, other in zip(served, bare, strict=True)]
    p50, p99 = np.percentile(waits, [50, 99]).tolist()
    lost = load.asked - load.completed
    if counted(service.said) != (load.completed, load.completed):
        console.print(f"{load.completed} replies. Output of the service:\n{service.said}")
    name = "tiny" if arguments.model is None else arguments.model
    cells = {
        "model": name,
        "clients": f"{clients}",
        "threads": f"{arguments.threads}",
        "bare, texts/s": f"{np.mean(bare):.0f}",
        "served, texts/s": f"{np.mean(served):.0f}",
        "served of bare": f"{median(fractions):.1%} ({min(fractions):.1%} to {max(fractions):.1%})",
        "p50": f"{1000 * p50:.0f} ms",
        "p99": f"{1000 * p99:.0f} ms",
        "p99 / p50": f"{p99 / p50:.1f}",
        "lost": f"{lost} of {load.asked}",
    }
    console.print(pipe_table(list(cells), [list(cells.values())]), markup=False)
    record = {
        "model": name,
        "clients": clients,
        "batch_size": size,
        "threads": arguments.threads,
        "options": arguments.options,
        "seconds": arguments.seconds,
        "bare": bare,
        "served": served,
        "p50": p50,
        "p99": p99,
        "requests": len(waits),
        "asked": load.asked,
        "lost": lost,
    }
    console.print(f"Written to {write('serve', record)}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
