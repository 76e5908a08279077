"""Runs of a study on a Ray cluster: a task each, done by another machine if its own is lost.

The study's folder, the data and the model lie where every machine sees them under the same path.
Each machine says before the first run whether it has the same version of Temper, sees the folder,
and reads the same rows. A run is held by its lock, so that a machine that was only cut off and the
one that took its run over never write at once.

A study in an object store has no such folder and no locks: a run is fetched into a folder of its
machine, and put into the store with every checkpoint and at its end, unless another machine has
begun it since; only what is being put at that moment is not stopped. The study's process fetches
what the report reads of a finished run into a folder of its own, and puts nothing of it.
"""

from __future__ import annotations

import atexit
import os
import queue
import shutil
import signal
import tempfile
import warnings
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import torch

from temper.app import plugins
from temper.app.cluster import Cluster, cause_of, load_ray, on_machine
from temper.app.store import Store, is_url
from temper.errors import LockedError, SettingError, TemperError, Terminated, shown
from temper.locks import STALE
from temper.stopping import raise_terminated
from temper.study.work import GridCell, StudyFolder, Work
from temper.study.workers import WAIT, SharedProgress, WorkerProgress, load_work, run_in_words
from temper.training.checkpoint_folder import RunFolder
from temper.training.config import model_identity, run_key
from temper.training.progress import Progress

LOSSES = 5
"""Machines or workers that one run may lose before the study ends."""


@dataclass(frozen=True)
class Job:
    """A run that the cluster shall do.

    Args:
        folder: The study that it is part of.
        cell: Its place there.
    """

    folder: StudyFolder
    cell: GridCell

    @property
    def key(self) -> str:
        """The run's key."""
        return self.folder.keys[self.cell]

    @property
    def run(self) -> RunFolder:
        """Where the run lies."""
        return self.folder.run(self.cell)


@dataclass(frozen=True)
class Ended:
    """How a job ended.

    Args:
        job: It.
        seconds: The median seconds of its step, where they are known.
        error: What it was stopped by; None of a run that is finished.
    """

    job: Job
    seconds: float | None = None
    error: BaseException | None = None


@contextmanager
def opened(out: str | Path, cluster: Cluster | None) -> Iterator[tuple[Path, Cluster | None]]:
    """Give the folder of this machine that a study is worked on in, and the cluster for its runs.

    Of a study in an object store that is a copy of what the store holds, models' weights left out.
    What this process changes there is put into the store when the cluster is given runs, and when
    this context ends. The copy is gone with the process.

    Args:
        out: A folder, or the URL of a store.
        cluster: Machines that do the runs.

    Raises:
        SettingError: A URL without a cluster, or of a kind of store that is not known here.
        WriteError: The store cannot be reached, or forbids what is needed.
    """
    if not is_url(out):
        # Other machines know the folder by its whole name.
        yield Path(out) if cluster is None else Path(out).expanduser().resolve(), cluster
        return
    if cluster is None:
        raise SettingError(
            f"--out {shown(out)} is a URL, to which a study is written by the machines of a "
            "cluster alone. Give the cluster's address as --cluster, or a folder."
        )
    if str(out).startswith("memory:"):
        raise SettingError(f"--out {shown(out)} is the memory of one process. Give another store.")
    made = Path(tempfile.mkdtemp(prefix="temper-")).resolve()
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    store = Store(str(out).rstrip("/"), made / "study")
    with store.probe():
        store.check_room()
    store.fetch(weights=False)
    try:
        yield store.folder, replace(cluster, store=store)
    finally:
        store.push()


def on_cluster(
    work: Work, cluster: Cluster, *, progress: Progress
) -> Iterator[tuple[GridCell, float | None]]:
    """Do all runs of a study on a cluster.

    Args:
        work: The study; its folder holds ``study.json``.
        cluster: Where.
        progress: Hears which runs are under way, their steps taken together, and notices.

    Yields:
        A run that is finished and the median seconds of its step, in the order of finishing.

    Raises:
        SettingError: The cluster has too little for a run.
        TemperError: A machine has other versions or data, or the first error of a run.
    """
    with connected(cluster, progress) as machines:
        machines.check(work.folder, work.folder.path / "study.json")
        jobs = [Job(work.folder, cell) for cell in work.folder.config.order()]
        with closing(machines.do(jobs)) as done:
            for ended in done:
                if ended.error is not None:
                    raise ended.error
                yield ended.job.cell, ended.seconds


class Machines:
    """A cluster that this process is connected to; see `connected`.

    Args:
        cluster: It, and what of it a run takes.
        progress: Hears which runs are under way, their steps taken together, and notices.
        hub: The actor that carries what runs say.
    """

    def __init__(self, cluster: Cluster, progress: Progress, hub: Any) -> None:
        self.cluster, self.progress, self._hub = cluster, progress, hub

    @property
    def runs(self) -> int:
        """How many runs the cluster can do at once."""
        return self.cluster.at_once

    def do(self, jobs: Sequence[Job]) -> Generator[Ended]:
        """Do runs, and yield each as it ends.

        Args:
            jobs: The runs.

        Raises:
            TemperError: A run was lost too often with its machine.
        """
        ray, heard = load_ray(), _Heard(self._hub)
        shared = SharedProgress(self.progress, len(jobs))
        imports, threads, store = plugins.loaded(), self.cluster.cpus, self.cluster.store
        if store is not None:
            store.push()
        task: Any = ray.remote(
            num_cpus=self.cluster.cpus,
            num_gpus=self.cluster.gpus,
            max_retries=0,
            scheduling_strategy="SPREAD",
        )(_do_run)

        def begin(job: Job, losses: int) -> Any:
            return task.remote(job.folder, imports, threads, job.cell, losses, self._hub, store)

        waiting = {begin(job, 0): (job, 0) for job in jobs}
        try:
            while waiting:
                done, _ = ray.wait(list(waiting), timeout=WAIT)
                shared.hear(heard)
                for reference in done:
                    job, losses = waiting.pop(reference)
                    try:
                        ended = Ended(job, ray.get(reference))
                    except ray.exceptions.RayTaskError as error:
                        ended = Ended(job, error=cause_of(error))
                    except (ray.exceptions.RayError, OSError) as error:
                        self._lose(job, losses + 1, error)
                        waiting[begin(job, losses + 1)] = (job, losses + 1)
                        continue
                    if store is not None and ended.error is None:
                        store.fetch(job.run.path, weights=False)
                    shared.end(job.cell)
                    yield ended
        finally:
            # Runs under way save the step in hand first.
            if waiting:
                with suppress(ray.exceptions.RayError):
                    ray.get(self._hub.end.remote())
                    ray.wait(list(waiting), num_returns=len(waiting), timeout=30.0)

    def _lose(self, job: Job, losses: int, error: Exception) -> None:
        """Say that a run was lost with its machine.

        Raises:
            TemperError: It was lost too often.
        """
        run = run_in_words(job.cell)
        if losses == LOSSES:
            raise TemperError(
                f"The run of {run} was lost {LOSSES} times with its machine or worker, the last "
                f"time by {type(error).__name__}. Finished runs are kept; give the same command "
                "again."
            ) from error
        self.progress.notice(
            f"The machine or worker of {run} was lost ({type(error).__name__}); another goes on "
            "with the run."
        )

    def check(self, folder: StudyFolder, file: Path) -> None:
        """Ask every machine that could do a run whether it can.

        Args:
            folder: The study of the runs.
            file: A file in the out folder, which all machines must see where there is no store.

        Raises:
            SettingError: None has enough for a run.
            TemperError: One has another version, does not see the file or may not use the store, or
                reads other rows; or all are gone.
        """
        store, imports, progress = self.cluster.store, plugins.loaded(), self.progress
        if store is None:
            content = file.read_bytes()
            self.cluster.ask(_look, folder, file, content, imports, progress=progress)
            return
        with store.probe() as name:
            self.cluster.ask(_look_at_store, folder, store, name, imports, progress=progress)


@contextmanager
def connected(cluster: Cluster, progress: Progress) -> Iterator[Machines]:
    """Connect this process to a cluster inside this context, unless it is connected already.

    Args:
        cluster: Where.
        progress: Hears what happens there.

    Raises:
        SettingError: Ray cannot connect to it.
    """
    with cluster.connection() as ray:
        # Where the study's own process is; begun anew elsewhere if that is lost.
        here = on_machine(ray.get_runtime_context().get_node_id(), soft=True)
        hub: Any = ray.remote(num_cpus=0, max_restarts=-1, scheduling_strategy=here)(_Hub).remote()
        yield Machines(cluster, progress, hub)


# Below: what the cluster's processes do.


class _Hub:
    """Carry what runs say to the study's process, and its wish to stop to them."""

    def __init__(self) -> None:
        self._said: list[Any] = []
        self._ending = False

    def say(self, message: Any) -> None:
        """Keep what a run said."""
        self._said.append(message)

    def take(self) -> list[Any]:
        """Return what was said since."""
        said, self._said = self._said, []
        return said

    def end(self) -> None:
        """Let all runs stop."""
        self._ending = True

    def ending(self) -> bool:
        """Say whether runs shall stop."""
        return self._ending


class _Heard:
    """The hub as the study's process reads it: a queue."""

    def __init__(self, hub: Any) -> None:
        self._hub, self._held = hub, deque[Any]()

    def get_nowait(self) -> Any:
        if not self._held:
            ray = load_ray()
            # What was said while the hub began anew is lost, and was no more than progress.
            with suppress(ray.exceptions.RayError):
                self._held.extend(ray.get(self._hub.take.remote()))
        if not self._held:
            raise queue.Empty
        return self._held.popleft()


class _Channel:
    """The hub as a run sees it: a queue to write to, and an event that is looked at once a second.

    Where the study's own process ends without a word, Ray ends its runs.
    """

    def __init__(self, hub: Any) -> None:
        self._hub, self._ending, self._looked = hub, False, monotonic()

    def put(self, message: Any) -> None:
        self._hub.say.remote(message)

    def is_set(self) -> bool:
        ray = load_ray()
        if not self._ending and monotonic() - self._looked >= 1.0:
            self._looked = monotonic()
            with suppress(ray.exceptions.RayError):
                self._ending = ray.get(self._hub.ending.remote(), timeout=30.0)
        return self._ending


_loaded: tuple[str, Work] | None = None


def _work(folder: StudyFolder, imports: tuple[str, ...]) -> Work:
    """Load what the runs of a study share, once a process."""
    global _loaded
    name = f"{folder.path} {sorted(folder.keys.values())}"
    if _loaded is None or _loaded[0] != name:
        warnings.simplefilter("ignore")
        _loaded = name, load_work(folder, imports)
    return _loaded[1]


def _look(folder: StudyFolder, file: Path, content: bytes, imports: tuple[str, ...]) -> str:
    """Say why this machine cannot do runs of a study; empty where it can."""
    try:
        is_seen = file.read_bytes() == content
    except OSError:
        is_seen = False
    if not is_seen:
        return (
            f"it does not see the study in {file.parent}. Give an --out on a file system that all "
            "machines share under that path, or a URL of an object store."
        )
    return _look_at_rows(folder, imports)


def _look_at_store(folder: StudyFolder, store: Store, name: str, imports: tuple[str, ...]) -> str:
    """Say why this machine cannot do runs of a study in a store; empty where it can."""
    with store.probe():
        if not store.holds(name):
            url = shown(store.url)
            return f"it finds another place under {url}. Give a URL that means one for all."
    return _look_at_rows(folder, imports)


def _look_at_rows(folder: StudyFolder, imports: tuple[str, ...]) -> str:
    """Say what else a machine trains on than the study's process; empty where it is the same."""
    work = _work(folder, imports)
    cell, settings = next(iter(folder.config.runs.items()))
    if run_key(settings, work.splits, identity=model_identity(settings.model)) != folder.keys[cell]:
        return (
            f"it reads other rows from {folder.config.data.source}, or another model from "
            f"{settings.model}. Give both where all machines see the same."
        )
    return ""


def _do_run(
    folder: StudyFolder,
    imports: tuple[str, ...],
    threads: int,
    cell: GridCell,
    losses: int,
    hub: Any,
    store: Store | None,
) -> float | None:
    """Do one run in a process of the cluster."""
    torch.set_num_threads(threads)
    channel = _Channel(hub)
    channel.put((cell, "begin", os.getpid()))
    older = raise_terminated()
    # The lock of a machine that was lost is in the way for a while.
    until = monotonic() + (2 * STALE if losses else 0.0)
    try:
        while True:
            try:
                work = _work(folder, imports)
                if store is not None:
                    return _do_stored(work, cell, channel, store)
                progress = WorkerProgress(cell, channel, channel)
                return work.do(cell, progress=progress)
            except LockedError:
                if monotonic() > until or channel.is_set():
                    raise
                sleep(1.0)
    except Terminated as error:
        # An exit would end the process, which Ray counts as lost.
        raise TemperError(f"{run_in_words(cell)} was stopped.") from error
    finally:
        signal.signal(signal.SIGTERM, older)


def _do_stored(work: Work, cell: GridCell, channel: _Channel, store: Store) -> float | None:
    """Do one run in a folder of this machine, and put it into the store."""
    with tempfile.TemporaryDirectory(prefix="temper-") as made:
        here = Store(store.url, Path(made))
        place = here.folder / work.folder.path.relative_to(store.folder)
        work = replace(work, folder=replace(work.folder, path=place))
        run = work.folder.run(cell)
        here.fetch(run.path, weights=False)
        if work.is_done(cell):
            progress = WorkerProgress(cell, channel, channel)
            return work.do(cell, progress=progress)
        here.begin(run.path)
        here.fetch(run.path, weights=True)
        try:
            progress = _StoringProgress(cell, channel, here, run)
            return work.do(cell, progress=progress)
        finally:
            here.put(run.path)


class _StoringProgress(WorkerProgress):
    """Put each checkpoint of a run into the store, so that another machine can go on from it."""

    def __init__(self, cell: GridCell, channel: _Channel, store: Store, run: RunFolder) -> None:
        super().__init__(cell, channel, channel)
        self._store, self._run = store, run
        self._kept = run.last_checkpoint()

    def steps(self, done: int, total: int, *, loss: float | None) -> None:
        """Tell of a step; a checkpoint is written after the step was told of."""
        newest = self._run.last_checkpoint()
        if newest not in (None, self._kept):
            self._kept = newest
            self._store.put(self._run.path)
        super().steps(done, total, loss=loss)
