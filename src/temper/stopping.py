"""React to SIGTERM and Ctrl-C: let the current step finish, save, and then exit."""

from __future__ import annotations

import _thread
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, Self

from temper.errors import Terminated

GRACE = 20.0
"""Seconds until work that has not stopped is interrupted; most clusters kill it after 30."""
FORWARDED = 1.0
"""Seconds in which a second signal is ignored, because launchers forward the terminal's Ctrl-C."""


class StopRequest:
    """Records SIGTERM or SIGINT in ``number``, so that the work can stop at a safe point.

    A second signal more than `FORWARDED` seconds later ends the work at once, and so does the end
    of `GRACE`. Ignored signals (``nohup``) stay ignored. Outside the main thread it does nothing.

    Example:
        >>> with StopRequest() as stop:
        ...     signal.raise_signal(signal.SIGTERM)
        ...     stop.number == signal.SIGTERM
        True
    """

    def __init__(self) -> None:
        self.number, self._since = 0, 0.0
        self._older: dict[int, Any] = {}
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                older = signal.getsignal(number)
                if older not in (None, signal.SIG_IGN):
                    self._older[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for number, older in self._older.items():
            signal.signal(number, older)

    def _take(self, number: int, _: object) -> None:
        if self.number:
            if time.monotonic() - self._since >= FORWARDED:
                raise stop_error(number)
            return
        self.number, self._since = number, time.monotonic()
        self._timer = threading.Timer(GRACE, _thread.interrupt_main, [number])
        self._timer.daemon = True
        self._timer.start()


def stop_error(number: int) -> BaseException:
    """Return the exception for a signal: exit code 130 for SIGINT, 143 for SIGTERM."""
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated()


@contextmanager
def terminating() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM inside this context, so that cleanup code runs."""
    older = raise_terminated() if threading.current_thread() is threading.main_thread() else None
    try:
        yield
    finally:
        if older is not None:
            signal.signal(signal.SIGTERM, older)


def raise_terminated() -> Callable[..., Any] | int | None:
    """Make SIGTERM raise `Terminated` in this process; return the previous signal handler."""

    def stop(number: int, _: object) -> NoReturn:
        raise stop_error(number)

    return signal.signal(signal.SIGTERM, stop)
