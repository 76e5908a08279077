"""Join the requests of many clients into passes of one model, in a separate thread."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple


class QueueFullError(Exception):
    """The queue is full; it is expected to have room in ``seconds`` (>= 1)."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"The queue is full. Ask again in {seconds} s.")
        self.seconds = seconds


class _Waiting(NamedTuple):
    """A request in the queue: its rows, their arrival time, and the future of their replies."""

    key: Hashable
    rows: Sequence[Any]
    since: float
    reply: asyncio.Future[list[Any]]


class Batcher:
    """Process requests in batches, first come first served, in a thread outside the event loop.

    Requests with the same key share a batch. The first one waits ``window`` seconds for others;
    while a batch is computed, the next one is collected. A batch is split into passes of the model,
    sorted by length, which saves padding. Clients that get their response early send the next
    request while the next pass is computed. If a pass fails, its requests are repeated one by one,
    so a text that breaks the model fails only its own request.

    Args:
        predict: Called in one thread with a key and rows; returns one reply per row.
        length: Returns the length of a row, for sorting.
        window: Seconds, >= 0.
        pass_rows: Maximum rows of a pass, >= 1; one larger request is a pass by itself.
        batch_rows: Maximum rows of a batch, >= 1; one larger request is a batch by itself.
        queue_rows: Maximum rows in the queue, >= 1; an empty queue accepts a larger request.
    """

    def __init__(
        self,
        predict: Callable[[Any, list[Any]], Sequence[Any]],
        *,
        length: Callable[[Any], int],
        window: float,
        pass_rows: int,
        batch_rows: int,
        queue_rows: int,
    ) -> None:
        self._predict, self._length, self._window = predict, length, window
        self._pass_rows, self._batch_rows, self._queue_rows = pass_rows, batch_rows, queue_rows
        self._queue: list[_Waiting] = []
        self.waiting = 0
        """Rows that wait."""
        self._working = 0
        self._seconds_a_row = 0.0
        self._some, self._enough = asyncio.Event(), asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")

    def start(self) -> None:
        """Begin to process requests, in the running event loop."""
        self._task = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """End the thread after all waiting requests."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._thread.shutdown()

    def submit(self, key: Hashable, rows: Sequence[Any]) -> asyncio.Future[list[Any]]:
        """Put the rows of a request (at least one) into the queue; return a future of the replies.

        The future gets one reply per row, or the error that ``predict`` raises on these rows.

        Raises:
            QueueFullError: If too many rows wait.
        """
        if self.waiting and self.waiting + len(rows) > self._queue_rows:
            ahead = (self.waiting + self._working) * self._seconds_a_row
            raise QueueFullError(max(1, math.ceil(ahead)))
        reply: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(key, rows, time.monotonic(), reply))
        self._count(len(rows))
        return reply

    def _count(self, rows: int) -> None:
        """Add ``rows`` to the number of waiting rows; negative for rows that leave the queue."""
        self.waiting += rows
        for event, least in ((self._some, 1), (self._enough, self._batch_rows)):
            if self.waiting >= least:
                event.set()
            else:
                event.clear()

    async def _work(self) -> None:
        while True:
            await self._some.wait()
            window = self._queue[0].since + self._window - time.monotonic()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._enough.wait(), max(window, 0.0))
            batch = self._take()
            self._working = sum(len(waiting.rows) for waiting in batch)
            for part in self._passes(batch):
                await self._reply(part)

    def _take(self) -> list[_Waiting]:
        """Take a batch from the queue: the first request, and others with its key that fit."""
        taken, left, rows = list[_Waiting](), [], 0
        for waiting in self._queue:
            size = len(waiting.rows)
            if not taken or (waiting.key == taken[0].key and rows + size <= self._batch_rows):
                taken.append(waiting)
                rows += size
            else:
                left.append(waiting)
        self._queue = left
        self._count(-rows)
        return taken

    def _passes(self, batch: list[_Waiting]) -> list[list[_Waiting]]:
        passes: list[list[_Waiting]] = []
        room = 0
        for waiting in sorted(batch, key=lambda waiting: max(map(self._length, waiting.rows))):
            if len(waiting.rows) > room:
                passes.append([])
                room = self._pass_rows
            passes[-1].append(waiting)
            room -= len(waiting.rows)
        return passes

    async def _reply(self, part: list[_Waiting]) -> None:
        rows, begin = [row for waiting in part for row in waiting.rows], time.monotonic()
        loop = asyncio.get_running_loop()
        try:
            result = await loop.run_in_executor(self._thread, self._predict, part[0].key, rows)
        except Exception as error:  # noqa: BLE001 - the client gets any error
            if len(part) > 1:
                for waiting in part:
                    await self._reply([waiting])
                return
            self._working -= len(rows)
            if not part[0].reply.cancelled():
                part[0].reply.set_exception(error)
            return
        seconds = (time.monotonic() - begin) / len(rows)
        self._seconds_a_row = 0.8 * (self._seconds_a_row or seconds) + 0.2 * seconds
        replies = iter(result)
        for waiting in part:
            self._working -= len(waiting.rows)
            results = [next(replies) for _ in waiting.rows]
            if not waiting.reply.cancelled():
                waiting.reply.set_result(results)
