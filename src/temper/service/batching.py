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
    one gathers. Only questions of one key are joined. A batch is answered in passes, its questions
    in the order of their lengths: little is padded, and who is answered early asks again while the
    next pass is computed, so that the model never waits. Where a pass fails, each of its questions
    is asked by itself, so that none pays for another's text.

    Args:
        answer: Called in one thread with a key and rows, returns one reply a row.
        length: What a row costs a pass, and with it each row that is padded to it.
        window: Seconds, >= 0.
        pass_rows: Rows of a pass, >= 1, except for one larger question.
        batch_rows: Rows of a batch, >= 1, except for one larger question.
        queue_rows: Rows that may wait, >= 1; a larger question is let in where nothing waits.
    """

    def __init__(
        self,
        answer: Callable[[Key, list[Row]], Sequence[Reply]],
        *,
        length: Callable[[Row], int],
        window: float,
        pass_rows: int,
        batch_rows: int,
        queue_rows: int,
    ) -> None:
        self._answer, self._length, self._window = answer, length, window
        self._pass_rows, self._batch_rows, self._queue_rows = pass_rows, batch_rows, queue_rows
        self._queue: deque[_Waiting[Key, Row, Reply]] = deque()
        self.waiting = 0
        """Rows that wait."""
        self._some, self._enough = asyncio.Event(), asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._seconds_a_row = 0.0
        self._rows_at_work = 0
        self._task: asyncio.Task[None] | None = None

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
        if self.waiting and self.waiting + len(rows) > self._queue_rows:
            ahead = (self.waiting + self._rows_at_work) * self._seconds_a_row
            raise QueueFullError(max(1, math.ceil(ahead)))
        reply: asyncio.Future[list[Reply]] = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(key, rows, time.monotonic(), reply))
        self.waiting += len(rows)
        self._some.set()
        if self.waiting >= self._batch_rows:
            self._enough.set()
        return reply

    async def _work(self) -> None:
        while True:
            await self._some.wait()
            await self._gather()
            batch = self._take()
            self._rows_at_work = sum(len(each.rows) for each in batch)
            for part in self._passes(batch):
                replies = await self._ask_together(part)
                for each, reply in zip(part, replies, strict=True):
                    self._rows_at_work -= len(each.rows)
                    if each.reply.cancelled():
                        continue
                    if isinstance(reply, Exception):
                        each.reply.set_exception(reply)
                    else:
                        each.reply.set_result(reply)

    async def _gather(self) -> None:
        """Wait until the first question's window is over or a batch is full."""
        ends = self._queue[0].since + self._window
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._enough.wait(), max(ends - time.monotonic(), 0.0))

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
        self.waiting -= rows
        if not left:
            self._some.clear()
        if self.waiting < self._batch_rows:
            self._enough.clear()
        return taken

    def _passes(
        self, batch: list[_Waiting[Key, Row, Reply]]
    ) -> list[list[_Waiting[Key, Row, Reply]]]:
        """Cut a batch into passes of questions of like length."""
        batch.sort(key=lambda each: max(map(self._length, each.rows)))
        passes: list[list[_Waiting[Key, Row, Reply]]] = []
        room = 0
        for each in batch:
            if len(each.rows) > room:
                passes.append([])
                room = self._pass_rows
            passes[-1].append(each)
            room -= len(each.rows)
        return passes

    async def _ask_together(
        self, batch: list[_Waiting[Key, Row, Reply]]
    ) -> list[list[Reply] | Exception]:
        """Ask a pass at once; where that fails, each question by itself."""
        rows = [row for each in batch for row in each.rows]
        begin = time.monotonic()
        try:
            found = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._answer, batch[0].key, rows
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, those who ask hear of it
            if len(batch) == 1:
                return [error]
            return [one for each in batch for one in await self._ask_together([each])]
        taken = (time.monotonic() - begin) / len(rows)
        before = self._seconds_a_row or taken
        self._seconds_a_row = 0.8 * before + 0.2 * taken
        places = iter(found)
        return [[next(places) for _ in each.rows] for each in batch]
