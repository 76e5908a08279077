"""Run whole commands in processes that a drill kills, or whose writes it refuses, at any point.

A command is forked from a process that has imported all modules, so hundreds of commands take
minutes. Python's audit events (PEP 578) count the operations on files in the drill's folder:
opening for writing, renaming, removing and creating. Writes inside libraries (safetensors, Parquet)
are covered by kills at random times and by a limit on the size of files.
"""

from __future__ import annotations

import fcntl
import gc
import hashlib
import json
import mmap
import os
import pkgutil
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CRASHED = 70
"""Exit code of a command that ended in an exception."""
F_SETPIPE_SZ, PIPE = 1031, 1 << 20
SECONDS = 600.0
"""Time limit of one command in seconds; on a busy machine commands are many times slower."""


@dataclass(frozen=True)
class Command:
    """A command that writes.

    Args:
        name: Name of the command.
        arguments: Its arguments; ``{}`` is replaced by the project's folder.
    """

    name: str
    arguments: str

    def of(self, folder: Path) -> list[str]:
        """Return the arguments for a project."""
        return self.arguments.format(folder).split()


TRAIN = (
    "train --model {0}/tiny --data {0}/data.jsonl --method uegr --epochs 2 --max-length 8"
    " --set train.save_steps=2 --out {0}/out"
)
MEASURED = (
    "--perspectives task,calibration,embedding_attack"
    " --set evaluate.attack_rows=4 --set evaluate.embedding_attack.pgd.steps=2"
)
COMMANDS = (
    Command("train", TRAIN),
    Command(
        "evaluate", f"evaluate {{0}}/run --data {{0}}/data.jsonl {MEASURED} --out {{0}}/out --card"
    ),
    Command(
        "compare",
        "compare --model {0}/tiny --data {0}/data.jsonl --methods plain,r_drop --seeds 0"
        " --epochs 1 --max-length 8 --perspectives task --out {0}/out",
    ),
    Command("predict", "predict {0}/run --data {0}/data.jsonl --out {0}/out.csv"),
    Command("calibrate", "calibrate {0}/run --data {0}/held_out.jsonl"),
    Command("report", "report {0}/run"),
)


@dataclass(frozen=True)
class Fault:
    """A fault that is injected into a command.

    Args:
        at: Number of the operation, from 1, before which it happens; None: at no operation.
        kill: Whether the process is killed; otherwise the operation is refused.
        error: The ``errno`` of a refused operation.
        lasting: Whether all later writes are refused too.
        after: Seconds after which the process is killed.
        largest: Maximum size of a file in bytes.
    """

    at: int | None = None
    kill: bool = False
    error: int = 0
    lasting: bool = False
    after: float | None = None
    largest: int | None = None


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Args:
        code: Exit code; below 0 the signal that killed it.
        said: Output to stdout and stderr.
        operations: Number of operations on files.
        seconds: Duration.
    """

    code: int
    said: str
    operations: int
    seconds: float


class Child:
    """A running command.

    Args:
        arguments: The arguments of ``temper``.
        root: The folder whose files are counted.
        fault: The injected fault.
        main: Function to call with the arguments instead of ``temper``.
    """

    def __init__(
        self,
        arguments: list[str],
        root: Path,
        fault: Fault | None = None,
        *,
        main: Callable[[list[str]], None] | None = None,
    ) -> None:
        self.fault, self.main = fault or Fault(), main
        self.counted = mmap.mmap(-1, 8)
        # A pipe, because a limit on file sizes would truncate a file; the output must fit into it.
        self.heard, self.log = os.pipe()
        fcntl.fcntl(self.log, F_SETPIPE_SZ, PIPE)
        self.begun = time.monotonic()
        self.pid = os.fork()
        if not self.pid:
            try:
                self._run(arguments, root)
            finally:
                os._exit(CRASHED)

    def _run(self, arguments: list[str], root: Path) -> None:
        for number in (1, 2):
            os.dup2(self.log, number)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        if self.fault.largest is not None:
            # Python ignores SIGXFSZ, so writing beyond the limit raises EFBIG.
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.fault.largest, resource.RLIM_INFINITY))
        sys.addaudithook(self._watch(str(root)))
        code: Any = CRASHED
        try:
            from temper.cli import main

            (self.main or main)(arguments)
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        except BaseException:  # noqa: BLE001 - the parent reads the traceback
            traceback.print_exc()
        os._exit(int(code))

    def _watch(self, root: str) -> Callable[[str, tuple[Any, ...]], None]:
        fault, count = self.fault, 0

        def watch(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal count
            if event == "open":
                path, _, flags = arguments
                if not isinstance(path, str | bytes | os.PathLike) or not flags & WRITING:
                    return
            elif event in CHANGES:
                path = arguments[0]
            else:
                return
            name = os.fsdecode(path)
            # Relative names occur only in the removal of a folder tree.
            if os.path.isabs(name) and not name.startswith(f"{root}/"):
                return
            count += 1
            self.counted[:] = count.to_bytes(8, "little")
            if fault.at is None or not (count == fault.at or (fault.lasting and count > fault.at)):
                return
            if fault.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            # Removing is possible on a full disk.
            if count == fault.at or event not in ("os.remove", "os.rmdir"):
                raise OSError(fault.error, os.strerror(fault.error), name)

        return watch

    def is_running(self) -> bool:
        """Return whether it is still running."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def wait(self) -> Ended:
        """Wait until it ends; kill it at the fault's time."""
        limit = self.fault.after if self.fault.after is not None else SECONDS
        handle = os.pidfd_open(self.pid)
        left = limit - (time.monotonic() - self.begun)
        if not select.select([handle], [], [], max(left, 0.0))[0]:
            os.kill(self.pid, signal.SIGKILL)
        os.close(handle)
        _, status = os.waitpid(self.pid, 0)
        seconds = time.monotonic() - self.begun
        os.close(self.log)
        with os.fdopen(self.heard, "rb") as heard:
            message = heard.read().decode(errors="replace")
        count = int.from_bytes(self.counted[:], "little")
        return Ended(os.waitstatus_to_exitcode(status), message, count, seconds)


def run(
    arguments: list[str],
    root: Path,
    fault: Fault | None = None,
    *,
    main: Callable[[list[str]], None] | None = None,
) -> Ended:
    """Run a command until it ends; see `Child`."""
    return Child(arguments, root, fault, main=main).wait()


def make_project(folder: Path) -> Path:
    """Make the input of the commands: a tiny model, rows, and an evaluated run."""
    import torch
    from transformers.utils.logging import disable_progress_bar

    from temper.testing.tiny import tiny_model, tiny_tokenizer

    _import_all()

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    torch.set_num_threads(1)
    disable_progress_bar()
    folder.mkdir(parents=True)
    tiny_model().save_pretrained(folder / "tiny")
    tiny_tokenizer().save_pretrained(folder / "tiny")
    for name, begin, count in (("data", 0, 40), ("held_out", 40, 24)):
        rows = [
            {"text": f"word{row} word{90 + row % 2} word{row % 7}", "label": row % 2}
            for row in range(begin, begin + count)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    data = f"--data {folder}/data.jsonl --max-length 8 --epochs 5 --learning-rate 0.01"
    given = f"train --model {folder}/tiny {data} --method plain --seed 0"
    _whole(f"{given} --out {folder}/run".split(), folder)
    evaluate = f"evaluate {folder}/run --data {folder}/data.jsonl --perspectives task"
    _whole(f"{evaluate} --out {folder}/run/evaluation".split(), folder)
    return folder


def _import_all() -> None:
    """Import the modules that commands use, so that forks need not import them."""
    import temper

    for module in pkgutil.walk_packages(temper.__path__, "temper."):
        # The service and the exports need optional packages.
        with suppress(ImportError):
            if not module.name.endswith("__main__"):
                import_module(module.name)
    for name in ("rich.progress", "transformers.models.bert.modeling_bert", "safetensors.numpy"):
        import_module(name)
    gc.collect()
    gc.freeze()


def _whole(arguments: list[str], folder: Path) -> Ended:
    ended = run(arguments, folder)
    if ended.code:
        given = " ".join(arguments)
        raise RuntimeError(f"temper {given} ended with {ended.code}:\n{ended.said}")
    return ended


class Stage:
    """A project in which a command runs repeatedly, and the files of an uninterrupted run.

    Args:
        project: The folder of `make_project`.
        command: Command to test.
        work: An empty folder.
    """

    def __init__(self, project: Path, command: Command, work: Path) -> None:
        self.project, self.command, self.folder = project, command, work / "project"
        self.reset()
        self.whole = _whole(command.of(self.folder), self.folder)
        self.outcome = outcome(self.folder)

    def reset(self) -> None:
        """Restore the initial project."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.project, self.folder)

    def run(self, fault: Fault | None = None) -> Ended:
        """Run the command in the current project."""
        return run(self.command.of(self.folder), self.folder, fault)

    def differences(self) -> list[str]:
        """Return the files that differ from those of an uninterrupted run."""
        result = outcome(self.folder)
        names = sorted(result.keys() | self.outcome.keys())
        return [name for name in names if result.get(name) != self.outcome.get(name)]

    def differing(self) -> str:
        """Return the differences as text, empty if there are none."""
        return "\n".join(f"differs: {name}" for name in self.differences())

    def given_again(self) -> str:
        """Repeat the command without a fault; return what is wrong, empty if nothing."""
        again = self.run()
        if again.code:
            return f"repeated, it ended with {again.code}:\n{again.said}"
        return self.differing()


def stages(
    project: Path, command: Command, *, inputs: int, seed: int
) -> Iterator[tuple[int, random.Random, Stage]]:
    """Yield number, random generator and the initial project for each input of a drill.

    Args:
        project: The folder of `make_project`.
        command: Command to test.
        inputs: Number of inputs.
        seed: Seed of the draws.
    """
    with tempfile.TemporaryDirectory() as work:
        stage = Stage(project, command, Path(work))
        for number in range(inputs):
            stage.reset()
            yield number, random.Random(f"{seed} {command.name} {number}"), stage


TIMES = {"times", "time", "seconds", "step_seconds", "over_reference", "cost", "created", "resumed"}
"""Fields that differ between two uninterrupted runs."""


def outcome(folder: Path) -> dict[str, str]:
    """Return a digest of each file of a project, without times and measured speeds.

    Args:
        folder: The project.
    """
    files = (file for file in sorted(folder.rglob("*")) if file.is_file() or file.is_symlink())
    return {file.relative_to(folder).as_posix(): _digest(file) for file in files}


def _digest(file: Path) -> str:
    if file.suffix in (".html", ".md"):
        return "a page"
    if file.suffix == ".parquet":
        text = json.dumps(pq.read_table(file).to_pylist(), default=str)
    elif file.suffix in (".json", ".jsonl"):
        lines = file.read_text(encoding="utf-8")
        parts = lines.splitlines() if file.suffix == ".jsonl" else [lines]
        text = json.dumps([_timeless(json.loads(part)) for part in parts], sort_keys=True)
    else:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    return hashlib.sha256(text.encode()).hexdigest()


def _timeless(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _timeless(value) for key, value in node.items() if key not in TIMES}
    return [_timeless(each) for each in node] if isinstance(node, list) else node
