"""Do the runs of a study as Ray tasks, which Ray repeats if a machine is lost.

Ray Tune has its own folders and records, so it does not fit a fixed list of runs in folders named
by their settings.

If the machines share the study's folder, a repeated run resumes from its last checkpoint. With an
object store, a run is done in a temporary folder and copied to the store at its end; a run whose
machine is lost starts again.
"""

from __future__ import annotations

import atexit
import shutil
import socket
import tempfile
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from temper.checkpoints.folder import RunFolder
from temper.checkpoints.identity import model_identity
from temper.cluster.machines import Cluster, cause_of, load_ray
from temper.cluster.store import Store, is_url
from temper.errors import LockedError, SettingError, TemperError, Terminated, shown
from temper.progress import Progress
from temper.stopping import GRACE
from temper.study.work import GridCell, StudyFolder, Work
from temper.study.workers import run_in_words
from temper.training.config import run_key

LOST = 180.0
"""Seconds to wait for a run's folder that a lost machine has locked."""


@dataclass(frozen=True)
class Job:
    """A run of a study for the cluster."""

    folder: StudyFolder
    cell: GridCell

    @property
    def key(self) -> str:
        return self.folder.keys[self.cell]

    @property
    def run(self) -> RunFolder:
        return self.folder.run(self.cell)

    def train_seconds(self) -> float:
        """Return the recorded time of the run's training, 0 if it has no record."""
        times = (self.run.record() or {}).get("times", {})
        return float(times.get("train_seconds", 0.0))


@contextmanager
def opened(out: str | Path, cluster: Cluster | None) -> Iterator[tuple[Path, Cluster | None]]:
    """Yield the local folder of a study, and the cluster for its runs.

    For a URL, the folder is a temporary copy of the store without weights. Changes are written to
    the store before runs begin and at the end.
    """
    if not is_url(out):
        # Other machines need the absolute path.
        yield Path(out) if cluster is None else Path(out).expanduser().resolve(), cluster
        return
    if cluster is None:
        raise SettingError(
            f"--out {shown(out)} is a URL, which needs a cluster. Pass the cluster's address as "
            "--cluster, or a local folder as --out."
        )
    made = Path(tempfile.mkdtemp(prefix="temper-")).resolve()
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    store = Store(str(out).rstrip("/"), made / "study")
    store.check()
    store.fetch()
    try:
        yield store.folder, replace(cluster, store=store)
    finally:
        store.push()


def do_runs(
    jobs: Sequence[Job], cluster: Cluster, progress: Progress
) -> Generator[tuple[Job, float | None]]:
    """Do runs on a connected cluster; yield each finished run with the seconds of a step."""
    ray, store, task = load_ray(), cluster.store, cluster.task(_do_run)
    if store is not None:
        store.push()
    for folder in {job.folder.path for job in jobs}:
        # Machines check for the folder before they begin.
        folder.mkdir(parents=True, exist_ok=True)
    pending, running = list(jobs), dict[Any, Job]()
    try:
        while pending or running:
            while pending and len(running) < max(1, cluster.at_once):
                job = pending.pop(0)
                progress.runs(len(jobs) - len(pending), len(jobs), run_in_words(job.cell))
                running[task(job, store)] = job
            # With a time limit, because machines may join.
            done, _ = ray.wait(list(running), timeout=10.0)
            for reference in done:
                job = running.pop(reference)
                seconds, notices = ray.get(reference)
                progress.notice_all(notices)
                if store is not None:
                    store.fetch(job.run.path)
                yield job, seconds
    except ray.exceptions.RayError as error:
        raise cause_of(error) from error
    except SystemExit as error:
        # Ray replaces the exit code of a signal with 1.
        raise Terminated from error
    finally:
        if running:
            for reference in running:
                ray.cancel(reference)
            # Each run saves a checkpoint first.
            ray.wait(list(running), num_returns=len(running), timeout=GRACE + 10.0)


# Below: the functions that run on the machines.


class _Notices(Progress):
    def __init__(self) -> None:
        self.kept: list[str] = []

    def notice(self, text: str) -> None:
        self.kept.append(text)


_loaded: dict[str, Work] = {}


def _do_run(job: Job, store: Store | None) -> tuple[float | None, list[str]]:
    warnings.simplefilter("ignore")
    if store is None and not job.folder.path.exists():
        raise TemperError(
            f"Machine {socket.gethostname()} of the cluster does not see {job.folder.path}. Pass "
            "an --out that all machines share under that path, or a URL of an object store."
        )
    name = f"{job.folder.path} {sorted(job.folder.keys.values())}"
    if name not in _loaded:
        _loaded.clear()
        _loaded[name] = job.folder.load()
    work, settings, progress = _loaded[name], job.folder.config.runs[job.cell], _Notices()
    if run_key(settings, work.splits, identity=model_identity(settings.model)) != job.key:
        raise TemperError(
            f"Machine {socket.gethostname()} of the cluster reads other rows from "
            f"{settings.data.source}, or another model from {settings.model}. Pass paths that "
            "mean the same on all machines."
        )
    if store is not None:
        return _do_stored(work, job.cell, store, progress), progress.kept
    # A file server may keep the lock of a lost machine for some time.
    until = monotonic() + LOST
    while True:
        try:
            return work.do(job.cell, progress=progress), progress.kept
        except LockedError:
            if monotonic() > until:
                raise
            sleep(1.0)


def _do_stored(work: Work, cell: GridCell, store: Store, progress: Progress) -> float | None:
    with tempfile.TemporaryDirectory(prefix="temper-") as made:
        here = Store(store.url, Path(made))
        path = here.folder / work.folder.path.relative_to(store.folder)
        work = replace(work, folder=replace(work.folder, path=path))
        run = work.folder.run(cell)
        here.fetch(run.path)
        if work.is_done(cell):
            return work.do(cell, progress=progress)
        is_trained = (run.record() or {}).get("status") == "finished"
        here.fetch(run.path, weights=True)
        try:
            return work.do(cell, progress=progress)
        finally:
            if is_trained:
                here.put(run.path / "evaluation", "settings.json")
            else:
                here.put(run.path, "run.json")
