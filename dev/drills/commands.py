"""Whole commands in processes of their own, which a drill kills or refuses the disk at any point.

A command is forked from a process that has imported what it needs, so that a drill of hundreds
takes minutes. Each operation on a file under the drill's folder is counted, by Python's audit
events (PEP 578): what Python opens for writing, renames, removes and makes. What libraries write by
themselves (safetensors, Parquet) is met by kills at random times and by a limit on the size of
files.
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
"""Exit code of a command that ended in an exception of its own."""
F_SETPIPE_SZ, PIPE = 1031, 1 << 20
SECONDS = 600.0
"""What one command may take; on a busy machine each takes many times as long."""


@dataclass(frozen=True)
class Command:
    """A command that writes.

    Args:
        name: What it is called.
        arguments: Its arguments; ``{}`` stands for the project's folder, which it writes into.
    """

    name: str
    arguments: str

    def of(self, folder: Path) -> list[str]:
        """Return its arguments in a project."""
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
    """What happens to a command.

    Args:
        at: Number of the operation, from 1, before which it happens; None where it is none.
        kill: Whether the process is killed there, else the operation is refused.
        error: Number of the error that the operation is refused with.
        lasting: Whether all later operations that write are refused too.
        after: Seconds after which the process is killed.
        largest: Bytes that a file may have.
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
        said: What it wrote to stdout and stderr.
        operations: Operations on files that it did.
        seconds: How long it took.
    """

    code: int
    said: str
    operations: int
    seconds: float


class Child:
    """A running command.

    Args:
        arguments: What stands behind ``temper``.
        root: The folder whose files count.
        fault: What happens to it.
        main: What is called with the arguments in place of ``temper``.
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
        # No file, which a limit on files would cut; what is said has to fit into the pipe.
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
            # Python ignores SIGXFSZ, so that writing beyond it is EFBIG.
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.fault.largest, resource.RLIM_INFINITY))
        sys.addaudithook(self._watch(str(root)))
        code: Any = CRASHED
        try:
            from temper.cli import main

            (self.main or main)(arguments)
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        except BaseException:  # noqa: BLE001 - whatever it is, the parent hears of it
            traceback.print_exc()
        os._exit(int(code))

    def _watch(self, root: str) -> Callable[[str, tuple[Any, ...]], None]:
        fault, count = self.fault, 0

        def watch(event: str, told: tuple[Any, ...]) -> None:
            nonlocal count
            if event == "open":
                path, _, flags = told
                if not isinstance(path, str | bytes | os.PathLike) or not flags & WRITING:
                    return
            elif event in CHANGES:
                path = told[0]
            else:
                return
            name = os.fsdecode(path)
            # Names relative to an open folder are those of a tree that is removed.
            if os.path.isabs(name) and not name.startswith(f"{root}/"):
                return
            count += 1
            self.counted[:] = count.to_bytes(8, "little")
            if fault.at is None or not (count == fault.at or (fault.lasting and count > fault.at)):
                return
            if fault.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            # A full disk can still be tidied up.
            if count == fault.at or event not in ("os.remove", "os.rmdir"):
                raise OSError(fault.error, os.strerror(fault.error), name)

        return watch

    def is_running(self) -> bool:
        """Say whether it has not ended yet."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def wait(self) -> Ended:
        """Wait until it ends; kill it when its time has come."""
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
            said = heard.read().decode(errors="replace")
        count = int.from_bytes(self.counted[:], "little")
        return Ended(os.waitstatus_to_exitcode(status), said, count, seconds)


def run(
    arguments: list[str],
    root: Path,
    fault: Fault | None = None,
    *,
    main: Callable[[list[str]], None] | None = None,
) -> Ended:
    """Run a command to its end; see `Child`."""
    return Child(arguments, root, fault, main=main).wait()


def make_project(folder: Path) -> Path:
    """Make what the commands work on: a tiny model, rows, and an evaluated run."""
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
    """Import what commands use, so that every fork has it, and no fork looks through it again."""
    import temper

    for module in pkgutil.walk_packages(temper.__path__, "temper."):
        # What serves or exports needs extras.
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
    """A project that a command is run in again and again, and what an undisturbed run leaves.

    Args:
        project: The folder of `make_project`.
        command: The command.
        work: An empty folder.
    """

    def __init__(self, project: Path, command: Command, work: Path) -> None:
        self.project, self.command, self.folder = project, command, work / "project"
        self.reset()
        self.whole = _whole(command.of(self.folder), self.folder)
        self.outcome = outcome(self.folder)

    def reset(self) -> None:
        """Put the project back as it was."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.project, self.folder)

    def run(self, fault: Fault | None = None) -> Ended:
        """Run the command in the project as it stands."""
        return run(self.command.of(self.folder), self.folder, fault)

    def differences(self) -> list[str]:
        """Return the files that are not as an undisturbed run leaves them."""
        found = outcome(self.folder)
        names = sorted(found.keys() | self.outcome.keys())
        return [name for name in names if found.get(name) != self.outcome.get(name)]

    def differing(self) -> str:
        """Return the same as lines of a fault; empty where nothing differs."""
        return "\n".join(f"differs: {name}" for name in self.differences())

    def given_again(self) -> str:
        """Give the command again, undisturbed; say what is wrong then, empty if nothing."""
        again = self.run()
        if again.code:
            return f"given again, it ended with {again.code}:\n{again.said}"
        return self.differing()


def stages(
    project: Path, command: Command, *, inputs: int, seed: int
) -> Iterator[tuple[int, random.Random, Stage]]:
    """Yield number, draws and the project as it was, for each input of a drill.

    Args:
        project: The folder of `make_project`.
        command: The command.
        inputs: How many.
        seed: Seed of the draws.
    """
    with tempfile.TemporaryDirectory() as work:
        stage = Stage(project, command, Path(work))
        for number in range(inputs):
            stage.reset()
            yield number, random.Random(f"{seed} {command.name} {number}"), stage


TIMES = {"times", "time", "seconds", "step_seconds", "over_reference", "cost", "created", "resumed"}
"""Fields that two undisturbed runs do not share."""


def outcome(folder: Path) -> dict[str, str]:
    """Return a digest of each file of a project, of times and measured speeds nothing.

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
