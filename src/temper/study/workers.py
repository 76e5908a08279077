"""Runs of a study side by side: processes that each train and judge one run after another.

A worker loads the data once and answers with what a step took. Steps, evaluations and notices come
back through a queue. Where one run fails, or the study is stopped, the others stop at their next
step and are gone on with by the next call.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from time import monotonic
from typing import Any

import torch

from temper.app.row_attack import RowAttacker
from temper.data.sources import load_splits
from temper.errors import SettingError, TemperError
from temper.methods import plugins
from temper.study.plan import StudyConfig
from temper.study.store import StudyFolder
from temper.study.work import Place, Work, judged_sets
from temper.training.progress import Progress

WAIT = 0.2
"""Seconds between two looks at what the workers say, and between two steps that a run tells of."""


@dataclass(frozen=True)
class _Job:
    """What a worker begins with.

    Args:
        config, folder, keys: As of `Work`, which each worker completes with data of its own.
        imports: What `temper.methods.plugins.load` has imported.
        threads: Threads of torch in each worker.
        gpus: Names of the GPUs; the workers take them in turn.
    """

    config: StudyConfig
    folder: StudyFolder
    keys: dict[Place, str]
    imports: tuple[str, ...]
    threads: int
    gpus: tuple[str, ...]


def check_workers(workers: int) -> None:
    """Refuse a number of workers that is none.

    Raises:
        SettingError: It is below 1.
    """
    if workers < 1:
        raise SettingError(f"--workers is the number of processes, at least 1, got {workers}.")


def side_by_side(work: Work, *, workers: int, progress: Progress) -> Iterator[tuple[Place, float]]:
    """Do all runs of a study in several processes.

    The threads of this process are shared out among them, and so are the GPUs. Warnings of other
    libraries are not shown. A script that calls this has its calls under
    ``if __name__ == "__main__"``, because each worker imports it.

    Args:
        work: The study.
        workers: Processes, at least 2; no more than there are runs are started.
        progress: Hears which runs are under way, their steps taken together, and notices.

    Yields:
        A run that is finished and the median seconds of its step, in the order of finishing.

    Raises:
        TemperError: The first error of a run.
    """
    order = work.config.order()
    workers = min(workers, len(order))
    context = get_context("spawn")
    told: Any = context.Queue()
    numbers: Any = context.Queue()
    for number in range(workers):
        numbers.put(number)
    stop = context.Event()
    job = _Job(
        work.config,
        work.folder,
        dict(work.keys),
        plugins.loaded(),
        max(1, torch.get_num_threads() // workers),
        _gpus(),
    )
    board = _Board(progress, len(order))
    pool = ProcessPoolExecutor(
        workers, mp_context=context, initializer=_begin, initargs=(job, told, numbers, stop)
    )
    try:
        waiting = {pool.submit(_do, place): place for place in order}
        while waiting:
            done, _ = wait(waiting, timeout=WAIT, return_when=FIRST_COMPLETED)
            board.hear(told)
            for future in done:
                place = waiting.pop(future)
                seconds = future.result()
                board.end(place)
                yield place, seconds
    except BrokenProcessPool as error:
        raise TemperError(
            "A worker died: it was killed, or the machine ran out of memory. Finished runs are "
            "kept; run the same command again, with fewer --workers where memory is short."
        ) from error
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


class _Board:
    """Tell one listener of several runs.

    Args:
        progress: The listener.
        total: Runs of the study.
    """

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total = progress, total
        self._begun = 0
        self._steps: dict[Place, tuple[int, int]] = {}

    def hear(self, told: Any) -> None:
        """Pass on what the workers have said since."""
        while True:
            try:
                place, kind, content = told.get_nowait()
            except queue.Empty:
                return
            if kind == "begin":
                self._begun += 1
                self._steps[place] = (0, 0)
                self._progress.runs(self._begun, self._total, f"{place[0]}, seed {place[1]}")
            elif kind == "steps":
                self._steps[place] = content
                done, total = (sum(part) for part in zip(*self._steps.values(), strict=True))
                self._progress.steps(done, total, loss=None)
            elif kind == "evaluation":
                self._progress.evaluation(*content)
            elif kind == "log":
                logging.getLogger("temper").log(*content)
            else:
                self._progress.notice(content)

    def end(self, place: Place) -> None:
        """Forget the steps of a finished run."""
        self._steps.pop(place, None)


class _Teller(Progress):
    """Send what a run says to the study's process, and stop the run where that wants it.

    Args:
        place: The run.
        told: The queue.
        stop: Set where the study is stopped.
    """

    def __init__(self, place: Place, told: Any, stop: Any) -> None:
        self._place, self._told, self._stop = place, told, stop
        self._said = 0.0

    def steps(self, done: int, total: int, *, loss: float | None) -> None:
        self._check()
        # A step of a small network is a matter of milliseconds.
        if monotonic() - self._said >= WAIT or done == total:
            self._said = monotonic()
            self._told.put((self._place, "steps", (done, total)))

    def evaluation(self, done: int, total: int, what: str) -> None:
        self._check()
        self._told.put((self._place, "evaluation", (done, total, what)))

    def notice(self, text: str) -> None:
        self._told.put((self._place, "notice", text))

    def _check(self) -> None:
        if self._stop.is_set():
            raise KeyboardInterrupt


class _Forward(logging.Handler):
    """Send log lines to the study's process."""

    def __init__(self, told: Any) -> None:
        super().__init__()
        self._told = told

    def emit(self, record: logging.LogRecord) -> None:
        self._told.put((("", 0), "log", (record.levelno, record.getMessage())))


@dataclass(frozen=True)
class _Worker:
    """One process between its start and its end."""

    work: Work
    told: Any
    stop: Any
    attack: RowAttacker


_worker: _Worker | TemperError | None = None


def _begin(job: _Job, told: Any, numbers: Any, stop: Any) -> None:
    """Begin a worker: its share of the machine, its data. What fails is told with the first run."""
    global _worker
    # Ctrl-C reaches every process of a terminal; the study's own decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    warnings.simplefilter("ignore")
    told.cancel_join_thread()
    logger = logging.getLogger("temper")
    logger.addHandler(_Forward(told))
    logger.propagate = False
    number = numbers.get()
    if len(job.gpus) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = job.gpus[number % len(job.gpus)]
    torch.set_num_threads(job.threads)
    try:
        for each in job.imports:
            plugins.load(each)
        splits = load_splits(job.config.data)
        sets = judged_sets(job.config, splits)
    except TemperError as error:
        _worker = error
        return
    work = Work(job.config, job.folder, splits, sets, job.keys)
    _worker = _Worker(work, told, stop, RowAttacker())


def _do(place: Place) -> float:
    """Do one run in a worker."""
    if _worker is None:
        raise RuntimeError("A worker was asked for a run before it began.")
    if isinstance(_worker, TemperError):
        raise _worker
    teller = _Teller(place, _worker.told, _worker.stop)
    _worker.told.put((place, "begin", None))
    return _worker.work.do(place, progress=teller, attack=_worker.attack)


def _end_with_parent() -> None:
    """End this process where the study's has died and will ask for nothing more."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _gpus() -> tuple[str, ...]:
    """Return the names of the GPUs that this process may use."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return tuple(name for name in named.split(",") if name)
    return tuple(str(number) for number in range(torch.cuda.device_count()))
