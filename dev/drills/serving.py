"""`temper serve` in a process of its own: start it, wait until it listens, hear how it ended."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

SECONDS = 120.0
"""In which a service must listen, and end, on a machine that others use too."""
HOST = "127.0.0.1"
ENDED = re.compile(r"Requests: (\d+) accepted, (\d+) answered\.")


def free_port() -> int:
    """Return a port that nothing listens at."""
    with socket.create_server((HOST, 0)) as server:
        return int(server.getsockname()[1])


def wait_until_it_listens(port: int, is_running: Callable[[], bool]) -> None:
    """Wait until a service takes connections.

    Args:
        port: Where.
        is_running: Whether its process has not ended.

    Raises:
        RuntimeError: It ended, or did not listen in time.
    """
    ends = time.monotonic() + SECONDS
    while is_running() and time.monotonic() < ends:
        try:
            socket.create_connection((HOST, port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"The service does not listen at port {port}.")


def counted(said: str) -> tuple[int, int] | None:
    """Return how many requests a service that has ended says it accepted and answered."""
    found = ENDED.search(said)
    return None if found is None else (int(found[1]), int(found[2]))


@dataclass
class Served:
    """A service that runs.

    Args:
        port: Where it listens.
        said: What it wrote, once it has ended.
    """

    port: int
    said: str = ""


@contextmanager
def serving(*arguments: str) -> Iterator[Served]:
    """Run ``temper serve`` until the context ends, and stop it by SIGTERM.

    Args:
        arguments: What stands behind ``temper serve``; the port is added.

    Raises:
        RuntimeError: It did not begin to listen; with what it wrote.
    """
    served = Served(free_port())
    command = [sys.executable, "-m", "temper", "serve", *arguments, "--port", str(served.port)]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_until_it_listens(served.port, lambda: process.poll() is None)
            yield served
        except RuntimeError as error:
            error.add_note(_ended(process, log))
            raise
        finally:
            served.said = _ended(process, log)


def _ended(process: subprocess.Popen[bytes], log: IO[str]) -> str:
    """Stop a process, and return what it wrote."""
    process.terminate()
    try:
        process.wait(SECONDS)
    finally:
        process.kill()
        log.seek(0)
    return log.read()
