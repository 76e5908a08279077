"""The processes of one run: they compare their settings first, and one writes the folder.

``torchrun --nproc-per-node 2 -m temper train ...`` starts the command several times. The processes
exchange JSON over a separate gloo group, not over that of the gradients, because torch pickles
objects.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temper.checkpoints.folder import RunFolder, differences
from temper.errors import OtherProcessError, SettingError, TemperError
from temper.settings import Faults

if TYPE_CHECKING:
    from temper.training.config import RunConfig

LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that torchrun and ``accelerate launch`` set for each process."""
LAST_WAIT = timedelta(seconds=10)
"""How long a stopped process waits for the others, one of which may have ended."""


@dataclass(frozen=True)
class Processes:
    """The processes that train one run together, seen from one of them; by default a single one.

    Process 0 writes the run's folder. They communicate in a gloo group of torch.distributed.
    """

    rank: int = 0
    count: int = 1
    group: Any = field(default=None, repr=False, compare=False)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def folder(self, path: Path) -> RunFolder:
        """Return the run's folder, which only the first process writes."""
        return RunFolder(path, writes=self.is_first)

    def gather(self, content: Any) -> list[Any]:
        """Send a JSON value to all processes; return the values of all, by rank.

        Raises:
            ProcessLostError: Another process has ended.
        """
        if self.count == 1:
            return [content]
        import torch
        from torch.distributed import all_gather

        from temper.training.checks import exchanging

        text = bytearray(json.dumps(content).encode())
        with exchanging(self.rank, self.count):
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
            all_gather(sizes, torch.tensor([len(text)]), group=self.group)
            longest = max(int(size) for size in sizes)
            rows = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.count)]
            mine = torch.frombuffer(text.ljust(longest), dtype=torch.uint8)
            all_gather(rows, mine, group=self.group)
        return [json.loads(row.numpy().tobytes()) for row in rows]

    def of_first(self, content: Any) -> Any:
        """Return the value of the first process; all processes call this."""
        return self.gather(content if self.is_first else None)[0]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Continue after this block when all processes have finished it; if one fails, all stop."""
        failure: Exception | None = None
        try:
            yield
        except (TemperError, OSError, RuntimeError, ValueError) as error:
            failure = error
        mine = None if failure is None else str(failure) or type(failure).__name__
        messages = self.gather(mine)
        failed = [rank for rank, message in enumerate(messages) if message is not None]
        if failure is not None and failed[0] == self.rank:
            raise failure
        if failed:
            raise OtherProcessError(
                f"Process {failed[0]} of {self.count} stopped: {messages[failed[0]]}"
            ) from failure

    def check_same(self, facts: Mapping[str, Any]) -> None:
        """Raise if the processes would not train the same run; all processes call this.

        Raises:
            SettingError: In the first process; it names another one and the differing settings.
            OtherProcessError: In the other processes.
        """
        gathered = self.gather(facts)
        with self.together():
            for rank, other in enumerate(gathered):
                if other != gathered[0]:
                    what = "; ".join(differences(gathered[0], other))
                    raise SettingError(
                        "The processes of a run train with the same settings, rows and versions, "
                        f"and process {rank} of {self.count} has others than process 0: {what}. "
                        "Start all of them with the same command, on the same data."
                    )

    def wait_stopped(self) -> None:
        """After a stop, wait up to 10 seconds until all processes have called this."""
        # A launcher ends the others once one has left, and the first may still be writing.
        if self.count > 1:
            from torch.distributed import monitored_barrier

            # A missing process has ended, or was stopped at another point.
            with suppress(RuntimeError):
                monitored_barrier(self.group, timeout=LAST_WAIT)


def _leave() -> None:
    """End the threads of process groups: one that outlives the interpreter causes a SIGABRT."""
    from torch import distributed

    joined.cache_clear()
    # Wrapped models also have a reference to the group.
    gc.collect()
    if distributed.is_initialized():
        distributed.destroy_process_group()


def end(code: int) -> None:
    """End this process with an exit code if it has joined others; else do nothing."""
    if joined.cache_info().currsize and joined().count > 1:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        # No finalization of Python: a thread of a group that is still referenced would abort it.
        os._exit(code)


@cache
def joined() -> Processes:
    """Join the other processes that a launcher started; do nothing in a single process."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Processes()
    missing = [name for name in LAUNCHED if name not in os.environ]
    if missing:
        raise SettingError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, and {', '.join(missing)} is not set, so "
            "that the processes cannot find each other. Start them by torchrun or accelerate "
            "launch, or unset WORLD_SIZE."
        )
    import torch
    from torch import distributed

    if not distributed.is_initialized():
        has_gpu = torch.cuda.is_available() and distributed.is_nccl_available()
        distributed.init_process_group("cpu:gloo,cuda:nccl" if has_gpu else "gloo")
        atexit.register(_leave)
    group = distributed.new_group(backend="gloo")
    return Processes(distributed.get_rank(), distributed.get_world_size(), group)


def check_run(config: RunConfig, processes: Processes) -> None:
    """Raise a `SettingError` if a run has settings that several processes do not support."""
    from temper.training.config import teachers_of

    train, count = config.train, processes.count
    if count == 1 and not train.fsdp:
        return
    faults = Faults()
    if count == 1:
        faults.append(
            "`train.fsdp` shards a model over processes, but there is only one. Start several "
            "(torchrun --nproc-per-node 2 -m temper train ...), or leave it out."
        )
    beside_fsdp = {
        "An adapter (`train.lora`, `train.peft`)": train.adapter is not None,
        "`train.keep` 'best'": train.keep == "best",
        "`train.precision` 'fp16'": train.precision == "fp16",
    }
    faults += [
        f"{setting} is not supported with `train.fsdp`. Leave one of them out."
        for setting, is_given in beside_fsdp.items()
        if is_given and train.fsdp
    ]
    if train.batch_size % count:
        faults.append(
            f"`train.batch_size` is {train.batch_size}, the rows of a batch over all processes, "
            f"and {count} processes cannot split it evenly. Pass a multiple of {count}."
        )
    if count > 1 and train.device not in ("auto", "cpu", "cuda"):
        faults.append(
            f"`train.device` is {train.device!r}, but each of {count} processes uses the GPU of "
            "its rank. Use 'auto', 'cuda' or 'cpu'."
        )
    if count > 1 and train.device != "cpu" and (fault := _missing_gpu()):
        faults.append(fault)
    if count > 1 and teachers_of(config.method_config()):
        faults.append(
            "A method with a teacher supports only one process, and there are "
            f"{count}. Leave the teacher out, or start the command without torchrun."
        )
    faults.refuse()


def _missing_gpu() -> str:
    """Return a notice if this process has no GPU on a machine with GPUs."""
    import torch

    rank, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if not torch.cuda.is_available() or rank < gpus:
        return ""
    return (
        f"This machine has {gpus} GPU{'s' if gpus > 1 else ''}, and {rank + 1} processes or more. "
        "Start one process per GPU, or set train.device=cpu."
    )
