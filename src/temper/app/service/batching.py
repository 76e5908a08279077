"""Join the questions of many clients into passes of one model, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Row = TypeVar("Row")
Reply = TypeVar("Reply")


class QueueFullError(Exception):
    """Report that no more rows may wait.

    Args:
        seconds: After how many there should be room again, >= 1.
    """

    def __init__(self, seconds: int) -> None:
        super().__init__(f"The queue is full. Ask again in {seconds} s.")
        self.seconds = seconds


@dataclass(frozen=True)
class _Waiting(Generic[Key, Row, Reply]):
    """A question, and where its asker waits."""

    key: Key
    rows: Sequence[Row]
    since: float
    reply: asyncio.Future[list[Reply]]


class Batcher(Generic[Key, Row, Reply]):
    """Answer questions in batches, first come first served, off the event loop.

    The first question of a batch waits ``window`` for others; while a batch is computed the next
    one gathers. Only questions of one key are joined. Where a batch fails, each of its questions is
    asked by itself, so that none pays for another's text.

    Args:
        answer: Called in one thread with a key and rows, returns one reply a row.
        window: Seconds, >= 0.
        batch_rows: Rows of a batch, >= 1, except for one larger question.
        queue_rows: Rows that may wait, >= 1; a larger question is let in where nothing waits.
    """

    def __init__(
        self,
        answer: Callable[[Key, list[Row]], Sequence[Reply]],
        *,
        window: float,
        batch_rows: int,
        queue_rows: int,
    ) -> None:
        self._answer, self._window = answer, window
        self._batch_rows, self._queue_rows = batch_rows, queue_rows
        self._queue: deque[_Waiting[Key, Row, Reply]] = deque()
        self._changed = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._seconds_a_row = 0.0
        self._rows_at_work = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Rows that wait."""
        return sum(len(each.rows) for each in self._queue)

    def start(self) -> None:
        """Begin to answer, in the running event loop."""
        self._task = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """End the thread, once nobody waits."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._thread.shutdown()

    def submit(self, key: Key, rows: Sequence[Row]) -> asyncio.Future[list[Reply]]:
        """Put rows into the queue.

        Args:
            key: What they may share a batch by.
            rows: At least one.

        Returns:
            Their replies, or what ``answer`` raises at these very rows.

        Raises:
            QueueFullError: Too many rows wait.
        """
        waiting = self.waiting
        if waiting and waiting + len(rows) > self._queue_rows:
            ahead = (waiting + self._rows_at_work) * self._seconds_a_row
            raise QueueFullError(max(1, math.ceil(ahead)))
        reply: asyncio.Future[list[Reply]] = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(key, rows, time.monotonic(), reply))
        self._changed.set()
        return reply

    async def _work(self) -> None:
        while True:
            while not self._queue:
                self._changed.clear()
                await self._changed.wait()
            await self._gather()
            batch = self._take()
            replies = await self._ask_together(batch)
            for each, reply in zip(batch, replies, strict=True):
                if each.reply.cancelled():
                    continue
                if isinstance(reply, Exception):
                    each.reply.set_exception(reply)
                else:
                    each.reply.set_result(reply)

    async def _gather(self) -> None:
        """Wait until the first question's window is over or a batch is full."""
        ends = self._queue[0].since + self._window
        while self.waiting < self._batch_rows and (left := ends - time.monotonic()) > 0:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)

    def _take(self) -> list[_Waiting[Key, Row, Reply]]:
        """Take the first question out of the queue, and those of its key that fit beside it."""
        taken, rows = [self._queue.popleft()], 0
        rows = len(taken[0].rows)
        left: deque[_Waiting[Key, Row, Reply]] = deque()
        for each in self._queue:
            if each.key == taken[0].key and rows + len(each.rows) <= self._batch_rows:
                taken.append(each)
                rows += len(each.rows)
            else:
                left.append(each)
        self._queue = left
        return taken

    async def _ask_together(
        self, batch: list[_Waiting[Key, Row, Reply]]
    ) -> list[list[Reply] | Exception]:
        """Ask a batch at once; where that fails, each question by itself."""
        rows = [row for each in batch for row in each.rows]
        begin, self._rows_at_work = time.monotonic(), len(rows)
        try:
            found = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._answer, batch[0].key, rows
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, those who ask hear of it
            if len(batch) == 1:
                return [error]
            return [one for each in batch for one in await self._ask_together([each])]
        finally:
            self._rows_at_work = 0
        taken = (time.monotonic() - begin) / len(rows)
        before = self._seconds_a_row or taken
        self._seconds_a_row = 0.8 * before + 0.2 * taken
        places = iter(found)
        return [[next(places) for _ in each.rows] for each in batch]
