"""One process at a time writes a folder; the others are told who does.

The lock is a file that is made with ``O_EXCL`` and touched while its process lives, so that it
works on shared file systems, where ``flock`` may hold for one machine alone. It is stale, and taken
over, where its process is known to be dead (same machine), or where it is not touched any more.

Taking over is making the file of the next number, which only one process can; so a lock is the
file of the highest number, and whoever finds a higher one than its own steps back.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from temper.errors import LockedError

LOCK = re.compile(r"\.lock-(\d+)")
BEAT = 10.0
"""Seconds between two touches of a lock."""
STALE = 90.0
"""Seconds without a touch after which a lock of another machine is looked at more closely: clients
of a shared file system may remember a file's time for a minute."""
WATCH = 3 * BEAT
"""Seconds that it is looked at: clocks may jump, but a living process touches its lock."""


@dataclass(frozen=True)
class Owner:
    """Who holds a lock.

    Args:
        host: Name of the machine.
        machine: Tells machines and containers of one name apart.
        pid: The process.
        born: Tells processes of one number apart; empty where the system does not say.
        since: When it took the lock.
    """

    host: str
    machine: str
    pid: int
    born: str
    since: str

    @classmethod
    def this_process(cls) -> Self:
        """Return this process."""
        since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        pid = os.getpid()
        return cls(socket.gethostname(), _machine(), pid, _born(pid), since)

    def is_this(self) -> bool:
        """Say whether it is this very process."""
        here = (socket.gethostname(), _machine(), os.getpid())
        return (self.host, self.machine, self.pid) == here

    def is_dead(self) -> bool | None:
        """Say whether the process has ended; None where that cannot be known from here."""
        if os.name == "nt" or (self.host, self.machine) != (socket.gethostname(), _machine()):
            return None
        if not _runs(self.pid):
            return True
        born = _born(self.pid)
        if not (born and self.born):
            return None
        return born != self.born

    def in_words(self) -> str:
        """Name the process."""
        return f"process {self.pid} on {self.host}, since {self.since}"


@contextmanager
def locked(folder: Path, *, what: Path | None = None) -> Iterator[None]:
    """Hold a folder's lock inside this context.

    Args:
        folder: The folder; it is made if need be, and removed at the end if it is then empty and
            was not there before.
        what: What is locked, for messages; the folder if left out.

    Raises:
        LockedError: Another process holds it.
        OSError: The file system refuses.
    """
    file = _acquire(folder, folder if what is None else what)
    ended = threading.Event()
    threading.Thread(target=_touch, args=(file, ended), daemon=True).start()
    pid = os.getpid()
    try:
        yield
    finally:
        ended.set()
        if os.getpid() == pid:
            file.unlink(missing_ok=True)


def check_unlocked(folder: Path, *, what: Path) -> None:
    """Refuse a folder that another living process writes, before any work.

    Args:
        folder: The folder; it need not exist.
        what: What it locks, for messages.

    Raises:
        LockedError: A process holds it that is not known to be dead.
    """
    held = _newest(folder)
    if held is None:
        return
    owner = _owner(held)
    if owner is None or owner.is_this():
        return
    dead = owner.is_dead()
    if dead is False or (dead is None and not _looks_stale(held)):
        raise LockedError(_refusal(what, owner))


def has_lock(folder: Path) -> bool:
    """Say whether a lock lies in a folder, of a living process or of a dead one."""
    return _newest(folder) is not None


def process_tag() -> str:
    """Return what a file ends in that this process is writing, so that others know whose it is."""
    machine = hashlib.sha256(f"{socket.gethostname()} {_machine()}".encode()).hexdigest()[:8]
    return f"{machine}_{os.getpid()}"


def has_ended(tag: str) -> bool:
    """Say whether a tag is that of a process of this machine which has ended.

    Args:
        tag: What `process_tag` returned there.
    """
    machine, _, pid = tag.partition("_")
    if os.name == "nt" or machine != process_tag().partition("_")[0] or not pid.isdecimal():
        return False
    with contextlib.suppress(OverflowError):
        return not _runs(int(pid))
    return False


def _runs(pid: int) -> bool:
    """Say whether a process of that number runs on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _acquire(folder: Path, what: Path) -> Path:
    """Make the lock's file, and return it."""
    content = json.dumps(vars(Owner.this_process())).encode()
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        held = _newest(folder)
        stale = None if held is None else _check_stale(held, what)
        number = 1 if held is None else _number(held) + 1
        mine = folder / f".lock-{number}"
        try:
            descriptor = os.open(mine, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except (FileExistsError, FileNotFoundError):
            # Another process was faster, or removed the folder with the end of its work.
            continue
        try:
            os.write(descriptor, content)
            os.fsync(descriptor)
        except OSError:
            mine.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        # The stale one may have been written to between the look at it and ours.
        if _newest(folder) != mine or (held is not None and _state(held) != stale):
            mine.unlink(missing_ok=True)
            continue
        for left in folder.glob(".lock-*"):
            if _number(left) < number:
                left.unlink(missing_ok=True)
        for left in folder.glob(".now-*"):
            left.unlink(missing_ok=True)
        return mine


def _check_stale(held: Path, what: Path) -> tuple[Owner | None, int | None]:
    """Return the state of a lock that is stale or gone.

    Raises:
        LockedError: Its process lives.
    """
    owner = _owner(held)
    if owner is None:
        # Whoever made it is about to write its name, or was killed before that.
        time.sleep(0.5)
        owner = _owner(held)
    state = _state(held)
    dead = True if owner is None else owner.is_dead()
    if dead is None and _looks_stale(held):
        until = time.monotonic() + WATCH
        while time.monotonic() < until and _state(held) == state:
            time.sleep(WATCH / 30)
        dead = _state(held) == state
    if owner is not None and not dead and held.exists():
        raise LockedError(_refusal(what, owner))
    return state


def _refusal(what: Path, owner: Owner) -> str:
    return f"{what} is being written by {owner.in_words()}. Wait for it to end, or write elsewhere."


def _looks_stale(held: Path) -> bool:
    """Compare the last touch with the file system's own clock: machines' clocks differ."""
    touched = _touched(held)
    probe = held.with_name(f".now-{uuid4().hex}")
    try:
        probe.touch()
        now = _touched(probe)
        probe.unlink(missing_ok=True)
    except OSError:
        return True
    # A lock of the future says that a clock was set.
    return touched is None or now is None or not 0 <= now - touched < STALE * 1e9


def _state(lock: Path) -> tuple[Owner | None, int | None]:
    """Return who holds a lock, and when it was touched."""
    return _owner(lock), _touched(lock)


def _touched(file: Path) -> int | None:
    """Return the time of a file's last change in ns; opening it asks the file server anew."""
    try:
        with file.open("rb") as opened:
            return os.fstat(opened.fileno()).st_mtime_ns
    except OSError:
        return None


def _touch(file: Path, ended: threading.Event) -> None:
    """Touch a lock until its context ends."""
    while not ended.wait(BEAT):
        with contextlib.suppress(OSError):
            os.utime(file)


def _newest(folder: Path) -> Path | None:
    """Return the lock of the highest number, None where there is none."""
    try:
        names = [name for name in os.listdir(folder) if LOCK.fullmatch(name)]
    except OSError:
        return None
    return max((folder / name for name in names), key=_number, default=None)


def _number(lock: Path) -> int:
    return int(lock.name.rpartition("-")[2])


def _owner(lock: Path) -> Owner | None:
    """Read who holds a lock; None where nobody has written it yet, or it is gone."""
    try:
        content: dict[str, Any] = json.loads(lock.read_bytes())
        return Owner(**content)
    except (OSError, ValueError, TypeError):
        return None


def _machine() -> str:
    """Tell machines, their starts and containers apart: process numbers count within one alone."""
    parts = []
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _born(pid: int) -> str:
    """Return when a process began, in the system's own count; empty where it does not say."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The second field, the program's name, may hold anything but ends with the last bracket.
    fields = text.rpartition(")")[2].split()
    # A process that has ended and was not waited for yet is dead too.
    return "" if len(fields) < 20 else "ended" if fields[0] in "ZX" else fields[19]
