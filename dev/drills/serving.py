"""Run `temper serve` in a separate process: start it, wait until it listens, read its output."""

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
"""Seconds in which a service must start or stop on a busy machine."""
HOST = "127.0.0.1"
ENDED = re.compile(r"Requests: (\d+) accepted, (\d+) completed\.")


def free_port() -> int:
    """Return an unused port."""
    with socket.create_server((HOST, 0)) as server:
        return int(server.getsockname()[1])


def wait_until_it_listens(port: int, is_running: Callable[[], bool]) -> None:
    """Wait until a service takes connections.

    Args:
        port: Port of the service.
        is_running: Whether its process is still running.

    Raises:
        RuntimeError: The process ended, or did not listen in time.
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


def counted(message: str) -> tuple[int, int] | None:
    """Return the numbers of accepted and completed requests from the output of a service."""
    result = ENDED.search(message)
    return None if result is None else (int(result[1]), int(result[2]))


@dataclass
class Served:
    """A running service.

    Args:
        port: Port of the service.
        said: Output, after the service has ended.
    """

    port: int
    said: str = ""


@contextmanager
def serving(*arguments: str) -> Iterator[Served]:
    """Run ``temper serve`` until the context ends, and stop it by SIGTERM.

    Args:
        arguments: The arguments of ``temper serve``; the port is added.

    Raises:
        RuntimeError: It did not listen in time; the error has its output.
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
    """Stop a process and return its output."""
    process.terminate()
    try:
        process.wait(SECONDS)
    finally:
        process.kill()
        log.seek(0)
    return log.read()
