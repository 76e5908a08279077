"""A Ray cluster: what of it is asked for, the connection, and its machines asked what they have."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import temper
from temper.app.store import Store
from temper.errors import SettingError, TemperError, Terminated, install_command
from temper.training.progress import Progress

ANSWER = 600.0
"""Seconds in which a machine must have said what it has."""


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster, and what of it a run takes.

    Args:
        address: As ``ray.init`` takes it: ``auto``, ``HOST:PORT`` or ``ray://HOST:PORT``.
        cpus: Cores of a run, and its threads, at least 1.
        gpus: GPUs of a run, 0 or more; parts of one let several runs share it.
        store: Where runs are kept; None where all machines share the study's folder.
        is_checked: Whether `check` has let it pass; else `connection` asks it.
    """

    address: str
    cpus: int = 1
    gpus: float = 0.0
    store: Store | None = None
    is_checked: bool = field(default=False, compare=False)

    @classmethod
    def of(cls, address: str | None, cpus: int, gpus: float) -> Cluster | None:
        """Return the cluster at an address, checked; None where there is no address.

        Raises:
            SettingError: As `check`; or cores or GPUs are given and no address.
        """
        if address is not None:
            cluster = cls(address, cpus, gpus)
            cluster.check()
            return replace(cluster, is_checked=True)
        if (cpus, gpus) != (1, 0.0):
            raise SettingError(
                "--cluster-cpus and --cluster-gpus say what a run takes on a cluster. Give its "
                "address as --cluster, or leave them out."
            )
        return None

    def check(self) -> None:
        """Refuse what cannot be asked for, before any work.

        Raises:
            SettingError: Ray is not installed, nothing listens at the address, or a number is out
                of bounds.
        """
        if self.cpus < 1 or self.gpus < 0:
            raise SettingError(
                "A run takes at least one core and no less than no GPU, got "
                f"--cluster-cpus {self.cpus} and --cluster-gpus {self.gpus:g}."
            )
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise SettingError(
                "Ray gives a run a part of one GPU or whole ones, got --cluster-gpus "
                f"{self.gpus:g}. Give a whole number, or less than 1."
            )
        load_ray()
        host, _, port = self.address.removeprefix("ray://").rpartition(":")
        if not host or not port.isdigit():
            return
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except OSError as error:
            raise SettingError(
                f"No Ray cluster answers at {self.address} ({error.strerror or error}). Start one "
                "(`ray start --head`), or give the address that `ray status` knows as --cluster."
            ) from error

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """Connect this process inside this context, unless it is connected already; give Ray.

        Raises:
            SettingError: As `check`; or Ray cannot connect.
        """
        ray = load_ray()
        own = not ray.is_initialized()
        if own and not self.is_checked:
            # Ray would wait for minutes where nobody answers.
            self.check()
        if own:
            is_main = threading.current_thread() is threading.main_thread()
            older = signal.getsignal(signal.SIGTERM)
            try:
                # Workers tell what matters by themselves.
                ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                said = str(error).strip().splitlines()
                raise SettingError(
                    f"Ray could not connect to {self.address}: {said[0] if said else error!r} "
                    "Start a cluster of the same versions of Python and Ray (`ray start --head`), "
                    "or give the address that `ray status` knows as --cluster."
                ) from error
            if is_main:
                # Ray takes the signal for itself, and what is under way is to be saved first.
                signal.signal(signal.SIGTERM, older)
        try:
            yield ray
        finally:
            if own:
                ray.shutdown()

    @property
    def at_once(self) -> int:
        """How many runs all machines of the cluster that is connected can do at once."""
        return sum(self._runs_of(node["Resources"]) for node in load_ray().nodes() if node["Alive"])

    def _runs_of(self, resources: Mapping[str, float]) -> int:
        """Return how many runs a machine with these cores and GPUs can do at once."""
        cpus, gpus = resources.get("CPU", 0.0), resources.get("GPU", 0.0)
        at_once = cpus // self.cpus
        if self.gpus:
            # A part is one of a single GPU.
            each = gpus / self.gpus if self.gpus >= 1 else int(gpus) * int(1 / self.gpus + 1e-9)
            at_once = min(at_once, each)
        return int(at_once)

    def ask(self, look: Callable[..., str], *arguments: Any, progress: Progress) -> None:
        """Ask every machine that could do a run whether it can.

        Args:
            look: Says on a machine why it cannot; empty where it can.
            arguments: What ``look`` is called with.
            progress: Hears of machines that are gone.

        Raises:
            SettingError: None has enough for a run.
            TemperError: One has another version of Temper or says why it cannot; or all are gone.
        """
        ray = load_ray()
        alive = [node for node in ray.nodes() if node["Alive"]]
        able = [node for node in alive if self._runs_of(node["Resources"])]
        if not able:
            has = "; ".join(
                f"{node['NodeManagerAddress']}: {node['Resources'].get('CPU', 0):g} cores, "
                f"{node['Resources'].get('GPU', 0):g} GPUs"
                for node in alive
            )
            raise SettingError(
                f"No machine of the cluster has what a run takes, {self.cpus} cores and "
                f"{self.gpus:g} GPUs ({has}). Give less as --cluster-cpus and --cluster-gpus."
            )
        asked = {
            ray.remote(
                num_cpus=0,
                max_retries=0,
                scheduling_strategy=on_machine(node["NodeID"], soft=False),
            )(_look).remote(temper.__version__, look, arguments): node["NodeManagerAddress"]
            for node in able
        }
        done, silent = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER)
        lost = 0
        for reference in done:
            try:
                fault = ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                fault = str(cause_of(error))
            except ray.exceptions.RayError as error:
                # A cluster takes some seconds to see that a machine is gone.
                fault, lost = "", lost + 1
                progress.notice(
                    f"Machine {asked[reference]} of the cluster is gone ({type(error).__name__})."
                )
            if fault:
                raise TemperError(f"Machine {asked[reference]} of the cluster: {fault}")
        if lost == len(asked):
            raise TemperError("Every machine of the cluster is gone. Look at `ray status`.")
        if silent:
            raise TemperError(
                f"Machine {asked[silent[0]]} of the cluster has not said in {ANSWER:.0f} s whether "
                "it can do a run. Look at `ray status`."
            )


def load_ray() -> Any:
    """Return Ray.

    Raises:
        SettingError: It is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise SettingError(
            f"--cluster needs Ray, which is not installed. Run: {install_command('cluster')}"
        ) from error
    return ray


def on_machine(node: str, *, soft: bool) -> Any:
    """Return what keeps a task or an actor on a machine."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=soft)


def cause_of(error: Any) -> BaseException:
    """Return what a task raised."""
    cause: BaseException = error.cause if isinstance(error.cause, BaseException) else error
    if isinstance(cause, TemperError | Terminated):
        return cause
    return TemperError(f"A run failed on the cluster: {type(cause).__name__}: {cause}")


def _look(version: str, look: Callable[..., str], arguments: tuple[Any, ...]) -> str:
    """Say on a machine why it cannot do a run; empty where it can."""
    if temper.__version__ != version:
        return f"it has Temper {temper.__version__}, and here is {version}. Install the same."
    return look(*arguments)
