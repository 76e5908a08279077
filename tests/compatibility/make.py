"""Keep what this release writes: ``python -m tests.compatibility.make``, before it is released.

It lies in ``tests/compatibility/VERSION`` and is never written again after that: later releases
open it, or say how to go on.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from drills.commands import COMMANDS, Stage, make_project
from temper import __version__

HERE = Path(__file__).parent
KEPT = {"compare": "out", "soup": "out", "calibrate": "run"}
"""Folder that is kept of each command."""


def main() -> None:
    """Run the commands, and keep what they wrote."""
    place = HERE / __version__
    shutil.rmtree(place, ignore_errors=True)
    with tempfile.TemporaryDirectory() as made:
        project = make_project(Path(made) / "project")
        for command in COMMANDS:
            if command.name in KEPT:
                stage = Stage(project, command, Path(made) / command.name)
                shutil.copytree(stage.folder / KEPT[command.name], place / command.name)
        for name in ("data.jsonl", "held_out.jsonl"):
            shutil.copy(project / name, place / name)
    for page in place.rglob("report.*"):
        page.unlink()


if __name__ == "__main__":
    main()
