"""Start a script of this folder in several gloo processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 240
"""A process that waits for the other is ended after this time, and the launch fails."""


def end_at_once() -> NoReturn:
    """End a launched script without the interpreter's end, at which a thread of torch may abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def launch_script(
    script: str, folder: Path, *arguments: str, processes: int = 2, limit: int = LIMIT_SECONDS
) -> None:
    """Run ``script FOLDER ARGUMENTS`` by torchrun, and fail as it does.

    Args:
        script: A file of this folder.
        folder: Where it writes.
        arguments: Further ones.
        processes: How many.
        limit: Seconds.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(processes)]
    # Port 0: the launcher picks one that is free.
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    command += [str(ROOT / "tests" / "distributed" / script), str(folder), *arguments]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
    }
    done = subprocess.run(
        command,
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
