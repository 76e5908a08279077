"""The machine and the versions that every benchmark saves, and the memory in use."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import temper

RESULTS = Path(__file__).parent / "results"
DISTRIBUTIONS = ("torch", "transformers", "numpy")


def processor() -> str:
    """Return the processor's name."""
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """Describe the machine.

    Returns:
        Processor, cores, torch's threads, operating system, load average (other work on the same
        cores makes ratios less precise) and the versions of the packages.
    """
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "versions": {"temper-lm": temper.__version__, **{n: version(n) for n in DISTRIBUTIONS}},
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def resident(field: str) -> int:
    """Return the memory of this process (``VmRSS``) or its peak (``VmHWM``), in bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def write(name: str, content: Mapping[str, Any], *, folder: Path = RESULTS) -> Path:
    """Write a benchmark's result.

    Args:
        name: The benchmark, which names the file.
        content: The results; the machine is added.
        folder: Target folder.

    Returns:
        The file, ``FOLDER/NAME.json``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    record = {"schema": 1, "benchmark": name, "machine": machine(), **content}
    path.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return path
