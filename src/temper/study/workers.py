"""Run the runs of a study in parallel worker processes.

A worker loads the data once and returns step times; progress and notices come back through a queue.
If a run fails, or the study is stopped, the others stop at their next step; the next call resumes
them.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from logging.handlers import QueueHandler
from multiprocessing import active_children, connection, get_context, parent_process
from multiprocessing.process import BaseProcess
from time import monotonic
from typing import Any

import torch

from temper.cluster import plugins
from temper.data import in_memory
from temper.errors import TemperError
from temper.progress import Progress
from temper.stopping import GRACE, raise_terminated
from temper.study.work import GridCell, StudyFolder, Work

WAIT = 0.2
"""Seconds between two reads of the workers' messages, and between two reports of a run."""
SAVED = 1.5 * GRACE
"""Seconds after which a terminated worker has saved its state."""


def side_by_side(
    work: Work, *, workers: int, progress: Progress
) -> Generator[tuple[GridCell, float | None]]:
    """Do all runs of a study in several processes (at least 2, at most one for each run).

    Threads and GPUs are divided between the workers. Warnings of other libraries are not shown. A
    script must call this under ``if __name__ == "__main__"``, because each worker imports it.

    Yields:
        Finished runs with the median seconds of a step, in order of completion.
    """
    order = work.folder.config.order()
    workers = min(workers, len(order))
    context = get_context("spawn")
    messages: Any = context.Queue()
    numbers: Any = context.Queue()
    for number in range(workers):
        numbers.put(number)
    stop = context.Event()
    # Each worker loads its own copy of the data.
    machine = (plugins.loaded(), max(1, torch.get_num_threads() // workers), _gpus())
    shared = SharedProgress(progress, len(order))
    children: dict[int, BaseProcess] = {}
    pool = ProcessPoolExecutor(
        workers,
        mp_context=context,
        initializer=_start_worker,
        initargs=(work.folder, in_memory.all_held(), *machine, messages, numbers, stop),
    )
    try:
        waiting = {pool.submit(_do_run, cell): cell for cell in order}
        while waiting:
            done, _ = wait(waiting, timeout=WAIT, return_when=FIRST_COMPLETED)
            shared.hear(messages)
            # Keep ended processes, whose exit codes are needed.
            children |= {child.pid: child for child in active_children() if child.pid is not None}
            for future in done:
                cell = waiting.pop(future)
                seconds = future.result()
                shared.end(cell)
                yield cell, seconds
    except BrokenProcessPool as error:
        # The pool ends the other workers, which first save their steps.
        late = _end_within(SAVED, children.values())
        pool.shutdown(wait=True, cancel_futures=True)
        shared.hear(messages)
        lost = {pid: child for pid, child in children.items() if child not in late}
        raise TemperError(_loss_in_words(lost, shared.running)) from error
    finally:
        stop.set()
        try:
            pool.shutdown(wait=True, cancel_futures=True)
        except BaseException:
            # A second signal does not wait for checkpoints.
            for child in active_children():
                child.kill()
            raise


def _end_within(seconds: float, children: Iterable[BaseProcess]) -> list[BaseProcess]:
    """Wait some seconds, then kill and return the remaining processes."""
    until = monotonic() + seconds
    late = [
        child
        for child in children
        if not connection.wait([child.sentinel], max(0.0, until - monotonic()))
    ]
    # A killed process keeps its locks on the pool's queues, so an idle one may block the others.
    for child in late:
        child.kill()
    return late


def _loss_in_words(children: Mapping[int, BaseProcess], running: Mapping[int, GridCell]) -> str:
    lost = []
    for pid, child in children.items():
        code = child.exitcode
        # The pool ends the others with SIGTERM.
        if code is None or code >= 0 or code == -signal.SIGTERM:
            continue
        run = f" of {run_in_words(running[pid])}" if pid in running else ""
        lost.append(f"The worker{run} was ended by {signal.Signals(-code).name}.")
    return (
        f"{' '.join(lost) or 'A worker died.'} A machine that runs out of memory sends SIGKILL. "
        "Finished runs are kept. Run the same command again, with fewer --workers if memory is "
        "short."
    )


def run_in_words(cell: GridCell) -> str:
    return f"{cell[0]}, seed {cell[1]}"


class SharedProgress:
    """Combines the progress of several runs."""

    def __init__(self, progress: Progress, total: int) -> None:
        self.running: dict[int, GridCell] = {}
        """The run that a worker began last, by its process."""
        self._progress, self._total = progress, total
        self._started = 0
        self._steps: dict[GridCell, tuple[int, int]] = {}

    def hear(self, messages: Any) -> None:
        while True:
            try:
                message = messages.get_nowait()
            except queue.Empty:
                return
            if isinstance(message, logging.LogRecord):
                logging.getLogger("temper").log(message.levelno, message.getMessage())
                continue
            cell, kind, content = message
            if kind == "begin":
                self._started += 1
                self._steps[cell] = (0, 0)
                self.running[content] = cell
                self._progress.runs(self._started, self._total, run_in_words(cell))
            elif kind == "steps":
                self._steps[cell] = content
                done, total = (sum(part) for part in zip(*self._steps.values(), strict=True))
                self._progress.steps(done, total, loss=None)
            else:
                getattr(self._progress, kind)(*content)

    def end(self, cell: GridCell) -> None:
        """Forget the steps of a finished run."""
        self._steps.pop(cell, None)


class WorkerProgress(Progress):
    """Sends the progress of a run to the study's process; stops the run on request."""

    def __init__(self, cell: GridCell, messages: Any, stop: Any) -> None:
        self._cell, self._messages, self._stop = cell, messages, stop
        self._last_message = 0.0
        self._is_told = False

    def steps(self, done: int, total: int, *, loss: float | None) -> None:
        self._check()
        # A step of a small network takes milliseconds, so limit the rate of messages.
        if monotonic() - self._last_message >= WAIT or done == total:
            self._last_message = monotonic()
            self._messages.put((self._cell, "steps", (done, total)))

    def evaluation(self, done: int, total: int, what: str) -> None:
        self._check()
        self._messages.put((self._cell, "evaluation", (done, total, what)))

    def info(self, text: str) -> None:
        self._messages.put((self._cell, "info", (text,)))

    def notice(self, text: str) -> None:
        self._messages.put((self._cell, "notice", (text,)))

    def _check(self) -> None:
        if self._stop.is_set() and not self._is_told:
            self._is_told = True
            # Training saves a checkpoint first; anything else ends at once.
            signal.raise_signal(signal.SIGTERM)


# Objects that a worker keeps between runs.
_loaded: Callable[[], Work]
_messages: Any
_stop: Any


def _start_worker(
    folder: StudyFolder,
    held: Mapping[str, in_memory.Held],
    imports: tuple[str, ...],
    threads: int,
    gpus: tuple[str, ...],
    messages: Any,
    numbers: Any,
    stop: Any,
) -> None:
    global _loaded, _messages, _stop
    # Ctrl-C reaches every process of a terminal; the study's process handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise_terminated()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    warnings.simplefilter("ignore")
    messages.cancel_join_thread()
    logger = logging.getLogger("temper")
    logger.addHandler(QueueHandler(messages))
    logger.propagate = False
    number = numbers.get()
    if len(gpus) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
    torch.set_num_threads(threads)
    in_memory.restore(held)
    # Loaded on first use: an error in the initializer would break the pool.
    _loaded = cache(partial(folder.load, imports))
    _messages, _stop = messages, stop


def _do_run(cell: GridCell) -> float | None:
    work = _loaded()
    _messages.put((cell, "begin", os.getpid()))
    return work.do(cell, progress=WorkerProgress(cell, _messages, _stop))


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _gpus() -> tuple[str, ...]:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return tuple(name for name in named.split(",") if name)
    return tuple(str(number) for number in range(torch.cuda.device_count()))
