"""Connect to a Ray cluster, with the cores and GPUs of one run."""

from __future__ import annotations

import copy
import math
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import temper
from temper.checkpoints.checkpoint import Checkpoint
from temper.cluster import plugins
from temper.cluster.settings import ClusterSettings
from temper.cluster.store import Store
from temper.data.examples import Examples
from temper.errors import SettingError, TemperError, install_command, one_line
from temper.evaluation.loading import load_predictor, predictor_identity
from temper.evaluation.prediction import Prediction, joined
from temper.evaluation.predictor import Predictor
from temper.evaluation.settings import PredictorSettings
from temper.models.hf import lasting_name
from temper.settings import section

RETRIES = 5
"""How often Ray repeats a task whose machine or process is lost."""


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster and the resources of one run.

    Args:
        address: Address for ``ray.init``: ``auto``, ``HOST:PORT`` or ``ray://HOST:PORT``.
        cpus: Cores and threads of a run, at least 1.
        gpus: GPUs of a run; several runs share a GPU if it is a fraction.
        store: Object store of the runs; None if all machines share the study's folder.
    """

    address: str
    cpus: int = 1
    gpus: float = 0.0
    store: Store | None = None

    @classmethod
    def of(cls, table: Any) -> Cluster | None:
        """Check the table ``cluster`` and return the cluster; None if it has no address."""
        settings = section(ClusterSettings, "cluster", table)
        if settings.address is not None:
            cluster = cls(settings.address, settings.cpus, settings.gpus)
            cluster.check()
            return cluster
        if settings != ClusterSettings():
            raise SettingError(
                "`cluster.cpus` and `cluster.gpus` are the resources of a run on a cluster. Pass "
                "its address as --cluster, or leave them out."
            )
        return None

    def check(self) -> None:
        """Check the address before any work, because Ray would wait for minutes."""
        load_ray()
        host, _, port = self.address.removeprefix("ray://").rpartition(":")
        if not host or not port.isdigit():
            return
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except OSError as error:
            raise SettingError(
                f"No Ray cluster responds at {self.address} ({error.strerror or error}). Start one "
                "(`ray start --head`), or pass the address that `ray status` knows as --cluster."
            ) from error

    @contextmanager
    def connection(self) -> Iterator[None]:
        """Connect to the cluster inside this context."""
        self.check()
        ray = load_ray()
        is_new = not ray.is_initialized()
        if is_new:
            older = signal.getsignal(signal.SIGTERM)
            try:
                ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                raise SettingError(
                    f"Ray could not connect to {self.address}: {str(error).strip()[:200]} Use the "
                    "same versions of Python and Ray as the cluster (`ray status`)."
                ) from error
            if threading.current_thread() is threading.main_thread():
                # Ray replaces the handler, which lets runs save a checkpoint first.
                signal.signal(signal.SIGTERM, older)
        try:
            if not self.at_once:
                raise SettingError(
                    "No machine of the cluster has the resources of a run, "
                    f"{self.cpus} cores and {self.gpus:g} GPUs. Reduce `cluster.cpus` or "
                    "`cluster.gpus`; `ray status` lists what the machines have."
                )
            yield
        finally:
            if is_new:
                ray.shutdown()

    def task(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that starts ``function`` on a machine and returns Ray's reference."""
        task = load_ray().remote(
            num_cpus=self.cpus,
            num_gpus=self.gpus,
            max_retries=RETRIES,
            scheduling_strategy="SPREAD",
        )(run_there)
        return partial(task.remote, function, temper.__version__, plugins.loaded(), self.cpus)

    @property
    def at_once(self) -> int:
        """How many runs the connected cluster can do at once."""
        needed = {"CPU": self.cpus, "GPU": self.gpus}
        alive = [node["Resources"] for node in load_ray().nodes() if node["Alive"]]
        return sum(
            int(min(item.get(name, 0.0) / amount for name, amount in needed.items() if amount))
            for item in alive
        )


def load_ray() -> Any:
    """Return the module ``ray``; a `SettingError` names the install command."""
    try:
        import ray
    except ImportError as error:
        raise SettingError(
            f"--cluster needs Ray, which is not installed. Run: {install_command('cluster')}"
        ) from error
    return ray


def cause_of(error: Any) -> TemperError:
    """Return the error that a machine raised; Ray wraps it in its own errors."""
    ray, inner = load_ray(), error
    while inner is not None:
        if isinstance(inner, TemperError) and not isinstance(inner, ray.exceptions.RayError):
            return inner
        error, inner = inner, getattr(inner, "cause", None) or inner.__cause__
    return TemperError(
        f"A machine of the cluster failed: {type(error).__name__}: {one_line(str(error))} Finished "
        "runs are kept; run the same command again."
    )


def run_there(
    function: Callable[..., Any],
    version: str,
    imports: Sequence[str],
    threads: int,
    *arguments: Any,
    **named: Any,
) -> Any:
    """Call a function on a machine, with the user's modules of the process that sent the work.

    Raises:
        TemperError: That process has another version of Temper.
    """
    if temper.__version__ != version:
        raise TemperError(
            f"Machine {socket.gethostname()} of the cluster has Temper {temper.__version__}, and "
            f"the command has {version}. Install the same version."
        )
    torch.set_num_threads(threads)
    for module in imports:
        plugins.load(module)
    return function(*arguments, **named)


ROWS = 512
"""Rows of a task: n rows are split into at most n / ROWS tasks, rounded up. A set with at most this
many rows is predicted in this process."""


def whole_name(model: Checkpoint) -> str:
    """Return the name under which other machines load a model; paths become absolute.

    Example:
        >>> whole_name(Checkpoint("minilm")), whole_name(Checkpoint("package:function"))
        ('minilm', 'package:function')
    """
    if model.kind == "code":
        file, name = model.code
        return f"{Path(file).resolve()}:{name}" if file.endswith(".py") else model.name
    return str(model.folder.resolve()) if model.folder.is_file() else lasting_name(model.name)


def spread(
    predictor: Predictor,
    model: Checkpoint,
    settings: PredictorSettings,
    cluster: Cluster,
    **given: Any,
) -> Predictor:
    """Return a predictor that sends the rows of large sets to the machines of a cluster.

    This process computes embeddings and hidden states. Predictions equal those of one machine
    except for rounding. Ray repeats the rows of a lost machine.
    ``given`` are further arguments of `temper.evaluation.loading.load_predictor`.
    """
    identity, twin = predictor_identity(model, settings), copy.copy(predictor)
    loading = {"identity": identity, "model": whole_name(model), "settings": settings, **given}

    def predict(examples: Examples, *, batch_size: int | None = None) -> Prediction:
        if len(examples) <= ROWS:
            return predictor.predict(examples, batch_size=batch_size)
        return _on_machines(examples, cluster, loading)

    # The copy has the same class, which perspectives check; a frozen dataclass refuses setattr.
    object.__setattr__(twin, "predict", predict)
    return twin


def _on_machines(examples: Examples, cluster: Cluster, loading: dict[str, Any]) -> Prediction:
    ray, task, count = load_ray(), cluster.task(_predict), len(examples)
    # A machine loads the model for each task.
    tasks = min(max(1, cluster.at_once), math.ceil(count / ROWS))
    parts = [examples.select(part) for part in np.array_split(np.arange(count), tasks)]
    pairs = [None if part.text_pair is None else list(part.text_pair) for part in parts]
    try:
        predictions = ray.get(
            [
                task(list(part.text), pair, **loading)
                for part, pair in zip(parts, pairs, strict=True)
            ]
        )
    except ray.exceptions.RayError as error:
        raise cause_of(error) from error
    return joined(range(count), predictions)


def _predict(
    texts: list[str],
    text_pairs: list[str] | None,
    *,
    identity: str,
    model: str,
    settings: PredictorSettings,
    **given: Any,
) -> Prediction:
    checkpoint = Checkpoint(model)
    if predictor_identity(checkpoint, settings) != identity:
        raise TemperError(
            f"Machine {socket.gethostname()} of the cluster has another model under {model}. Pass "
            "a path that means the same on all machines."
        )
    examples = Examples("rows", texts, text_pair=text_pairs, kind="unlabeled")
    return load_predictor(checkpoint, settings=settings, **given).predict(examples)
