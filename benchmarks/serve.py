"""Load `temper serve` with clients, beside the bare model: ``python -m benchmarks.serve``.

64 clients ask one text after the other, each over a connection of its own that stays open, from one
process that does nothing else. The bare model is `temper.Classifier` in this process, called with
64 texts at a time, in passes of as many rows. Both answer the same texts of 1 to 100 words; every
64 of them hold the same lengths, so that stretches of equal time are equal work. They take turns,
and a table is printed: texts a second over all rounds, their ratio (the median over rounds, and the
extremes), and how long a client waits. A tiny model shows what the service itself costs; ``--model
minilm`` is a real one with a drawn head, and any run can be named.
"""

from __future__ import annotations

import argparse
import json
import random
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, cycle
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from benchmarks.record import write
from temper import Classifier
from temper.display.wording import pipe_table
from temper.models.names import MODELS, resolve
from tests.cli.tiny_project import BAD, GOOD, OTHERS, make_model

LONGEST = 100
"""Words of a text, at most."""
BLOCKS = 32
"""Blocks of texts that differ; they are asked again and again."""
WARM = 1.0
"""Seconds of load before a round is measured."""
PATIENCE = 120.0
"""Seconds in which the service must have begun, or answered."""


def texts_of(clients: int) -> list[str]:
    """Return texts of which every ``clients``, from a multiple of it on, hold the same lengths."""
    draws, words = random.Random(0), (*GOOD, *BAD, *OTHERS)
    lengths = np.geomspace(1, LONGEST, clients).round().astype(int).tolist()
    blocks = (draws.sample(lengths, clients) for _ in range(BLOCKS))
    return [" ".join(draws.choices(words, k=length)) for length in chain.from_iterable(blocks)]


def checkpoint_of(model: str | None, folder: Path) -> str:
    """Return what the service loads: a folder, or a new one for a short name or a tiny model."""
    if model is None:
        return str(make_model(folder / "model"))
    if model not in MODELS:
        return model
    source = resolve(model)
    network = AutoModelForSequenceClassification.from_pretrained(source)
    network.save_pretrained(folder / "model")
    AutoTokenizer.from_pretrained(source).save_pretrained(folder / "model")
    return str(folder / "model")


@contextmanager
def serving(model: str, options: list[str]) -> Iterator[tuple[str, int]]:
    """Run the service, and yield its address once it listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "127.0.0.1", free.getsockname()[1]
    command = [sys.executable, "-m", "temper", "serve", model, "--port", str(address[1]), *options]
    service = subprocess.Popen(command)
    try:
        ends = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(address).close()
                break
            except OSError:
                if service.poll() is not None or time.monotonic() > ends:
                    raise
                time.sleep(0.1)
        yield address
    finally:
        service.terminate()
        service.wait()


@dataclass
class Client:
    """One connection and the question that it waits for."""

    connection: socket.socket
    asked: float = 0.0
    reply: bytes = b""

    def ask(self, question: bytes) -> None:
        """Send a question."""
        self.reply, self.asked = b"", time.perf_counter()
        self.connection.sendall(question)

    def is_answered(self) -> bool:
        """Read what has come, and say whether it is a whole answer."""
        self.reply += self.connection.recv(65536)
        head, found, body = self.reply.partition(b"\r\n\r\n")
        if not found:
            return False
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(self.reply.decode())
        size = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        return len(body) == int(size)


class Load:
    """Clients that ask whenever they are answered.

    Args:
        address: Where the service listens.
        clients: How many.
        texts: What they ask, again and again.
    """

    def __init__(self, address: tuple[str, int], clients: int, texts: list[str]) -> None:
        bodies = [json.dumps({"texts": [text]}).encode() for text in texts]
        head = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self.questions = cycle(
            f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body for body in bodies
        )
        self.clients = [Client(socket.create_connection(address)) for _ in range(clients)]

    def run(self, seconds: float) -> tuple[float, list[float]]:
        """Ask for some time.

        Returns:
            Answers a second, and the seconds of each.
        """
        waits: list[float] = []
        with selectors.DefaultSelector() as selector:
            for client in self.clients:
                client.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(client.connection, selectors.EVENT_READ, client)
                client.ask(next(self.questions))
            begin = time.perf_counter() + WARM
            open_clients, now = len(self.clients), 0.0
            while open_clients:
                ready = selector.select(PATIENCE)
                if not ready:
                    raise RuntimeError(f"No answer came in {PATIENCE:g} s.")
                for key, _ in ready:
                    if not key.data.is_answered():
                        continue
                    now = time.perf_counter()
                    if begin <= now < begin + seconds:
                        waits.append(now - key.data.asked)
                    if now < begin + seconds:
                        key.data.ask(next(self.questions))
                    else:
                        open_clients -= 1
        return len(waits) / seconds, waits


class Bare:
    """The model without a service.

    Args:
        model: What is loaded.
        texts: What is asked, again and again.
        rows: Texts of a call.
        batch_size: Rows of a forward pass.
    """

    def __init__(self, model: str, texts: list[str], rows: int, *, batch_size: int) -> None:
        self.classifier = Classifier.load(model, batch_size=batch_size)
        self.calls = cycle([texts[start : start + rows] for start in range(0, len(texts), rows)])

    def run(self, seconds: float) -> float:
        """Answer for some time, and return texts a second."""
        self.classifier(next(self.calls))
        begin, done = time.perf_counter(), 0
        while time.perf_counter() < begin + seconds:
            done += len(self.classifier(next(self.calls)))
        return done / (time.perf_counter() - begin)


def main() -> None:
    """Measure, print and write down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a run, a checkpoint or a short name; a tiny one if left")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each of a round's halves")
    parser.add_argument("--batch-size", type=int, default=8, help="rows of a forward pass, of both")
    parser.add_argument("--options", default="", help="options of `temper serve`, in one string")
    arguments = parser.parse_args()
    clients, texts = arguments.clients, texts_of(arguments.clients)
    served, bare = list[float](), list[float]()
    waits: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        model = checkpoint_of(arguments.model, Path(folder))
        size = arguments.batch_size
        options = ["--batch-size", str(size), *arguments.options.split()]
        with serving(model, options) as address:
            load = Load(address, clients, texts)
            alone = Bare(model, texts, clients, batch_size=size)
            for number in range(-1, arguments.rounds):
                rate, seen = load.run(arguments.seconds)
                without = alone.run(arguments.seconds)
                if number < 0:
                    continue
                served.append(rate)
                bare.append(without)
                waits += seen
    shares = [one / other for one, other in zip(served, bare, strict=True)]
    p50, p99 = np.percentile(waits, [50, 99]).tolist()
    console = Console(soft_wrap=True, highlight=False)
    name = "tiny" if arguments.model is None else arguments.model
    cells = {
        "model": name,
        "clients": f"{clients}",
        "bare, texts/s": f"{np.mean(bare):.0f}",
        "served, texts/s": f"{np.mean(served):.0f}",
        "served of bare": f"{median(shares):.1%} ({min(shares):.1%} to {max(shares):.1%})",
        "p50": f"{1000 * p50:.0f} ms",
        "p99": f"{1000 * p99:.0f} ms",
        "p99 / p50": f"{p99 / p50:.1f}",
    }
    console.print(pipe_table(list(cells), [list(cells.values())]), markup=False)
    record = {
        "model": name,
        "clients": clients,
        "batch_size": size,
        "options": arguments.options,
        "seconds": arguments.seconds,
        "bare": bare,
        "served": served,
        "p50": p50,
        "p99": p99,
        "requests": len(waits),
    }
    console.print(f"Written to {write('serve', record)}")


if __name__ == "__main__":
    main()
