"""Lock a folder, so that only one process writes it; the error of others names that process.

filelock's locks end with their process, even if it is killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from temper.errors import LockedError

NAME, OWNER = ".lock", ".lock-owner"
LOCK = re.compile(r"\.lock(-owner)?")
"""Matches the names of the lock files, which a killed process leaves in the folder."""
WAIT = 0.25
"""Seconds to wait for a lock, because `check_unlocked` of another process takes it for a moment."""


@contextmanager
def locked(folder: Path, *, what: Path | None = None) -> Iterator[None]:
    """Lock a folder inside this context; create it if it does not exist.

    The error names ``what`` instead of the folder, if given.

    Raises:
        LockedError: Another process has locked it.
        OSError: The lock file cannot be written.
    """
    lock, pid = FileLock(folder / NAME, timeout=WAIT, poll_interval=WAIT / 5), os.getpid()
    while not lock.is_locked:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except FileNotFoundError:
            # The last owner removed the folder at the end of its work.
            continue
        except Timeout as error:
            raise LockedError(_refusal(what or folder, _owner(folder))) from error
    try:
        since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        (folder / OWNER).write_text(f"{_this_process()}, since {since}", encoding="utf-8")
        yield
    finally:
        # A forked process has a copy of the lock, but does not own it.
        if os.getpid() == pid:
            # The lock is removed last: while it exists, the next run removes the other leftovers.
            with contextlib.suppress(OSError):
                for name in (OWNER, NAME):
                    (folder / name).unlink(missing_ok=True)
            lock.release()


def check_unlocked(folder: Path, *, what: Path) -> None:
    """Raise `LockedError` if another process has locked a folder; the error names ``what``."""
    if not (folder / NAME).exists():
        return
    try:
        with FileLock(folder / NAME, timeout=0):
            pass
    except Timeout as error:
        owner = _owner(folder)
        if not owner.startswith(f"{_this_process()},"):
            raise LockedError(_refusal(what, owner)) from error
    except OSError:
        # The lock file is gone by now, or cannot be opened.
        pass


def has_lock(folder: Path) -> bool:
    """Return whether a folder has a lock file, be it of a running or of a killed process."""
    # filelock < 4 removes its own file on release, even if the owner's could not be removed.
    return any((folder / name).exists() for name in (NAME, OWNER))


def process_tag() -> str:
    """Return the ending of this process's temporary files: hash of the machine and process id."""
    machine = hashlib.sha256(f"{socket.gethostname()} {_machine()}".encode()).hexdigest()[:8]
    return f"{machine}_{os.getpid()}"


def has_ended(tag: str) -> bool:
    """Return whether the process of a `process_tag` ran on this machine and has ended."""
    machine, _, pid = tag.partition("_")
    if os.name == "nt" or machine != process_tag().partition("_")[0] or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    return False


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _owner(folder: Path) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return (folder / OWNER).read_text(encoding="utf-8")
    return "another process"


def _refusal(what: Path, owner: str) -> str:
    return f"{what} is being written by {owner}. Wait until it ends, or choose another folder."


def _machine() -> str:
    """Return boot id and container, because process ids are unique only within them."""
    parts = []
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)
