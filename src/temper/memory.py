"""Measure the peak and the free memory of a process, and recognize out-of-memory errors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MEBIBYTE = 2**20
_SYSTEM, _GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Gauge:
    """Measures the peak memory since `start`, in bytes.

    Args:
        name: ``memory_cuda`` (allocated by torch on the GPU), ``memory_resident`` (of the whole
            process), or ``memory_process`` (the same, but since the process began: `start` does
            nothing).
    """

    name: str
    start: Callable[[], None]
    peak: Callable[[], int]


def free_memory() -> int | None:
    """Return the bytes that this process can still allocate; None if unknown."""
    free = []
    with suppress(OSError, KeyError, ValueError):
        free.append(int(_fields(_SYSTEM)["MemAvailable:"]) * 1024)
    with suppress(OSError, KeyError, ValueError):
        # In a container the cgroup's limit counts; pages of inactive files can be reclaimed.
        limit, used = (
            int((_GROUP / f"memory.{name}").read_text("ascii")) for name in ("max", "current")
        )
        free.append(limit - used + int(_fields(_GROUP / "memory.stat")["inactive_file"]))
    return min(free, default=None)


def _fields(file: Path) -> dict[str, str]:
    lines = [line.split() for line in file.read_text(encoding="ascii").splitlines()]
    return {words[0]: words[1] for words in lines if len(words) > 1}


def is_exhausted(error: BaseException) -> bool:
    """Return whether an exception means out of memory, on a GPU or the CPU."""
    import torch

    exhausted = isinstance(error, MemoryError | torch.OutOfMemoryError)
    # On the CPU torch raises a RuntimeError.
    return exhausted or "can't allocate memory" in str(error)


def gauge_of(device: torch.device | None) -> Gauge | None:
    """Return the gauge of a GPU, else of this process; None if the platform has none."""
    if device is not None and device.type == "cuda":
        import torch

        return Gauge(
            "memory_cuda",
            start=lambda: torch.cuda.reset_peak_memory_stats(device),
            peak=lambda: torch.cuda.max_memory_allocated(device),
        )
    try:
        # Linux lets a process reset its peak, unless a sandbox forbids it.
        _reset()
        if _resident() > 0:
            return Gauge("memory_resident", start=_reset, peak=_resident)
    except (OSError, ValueError):
        pass
    if sys.platform == "win32":
        return None
    return Gauge("memory_process", start=lambda: None, peak=_process)


def _reset() -> None:
    _RESET.write_text("5", encoding="ascii")


def _resident() -> int:
    for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"{_STATUS} has no line VmHWM.")


def _process() -> int:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux and the BSDs count kibibytes, macOS bytes.
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024
