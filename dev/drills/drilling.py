"""The results of a drill, and the command line of all drills."""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console


@dataclass
class Found:
    """Results of a drill.

    Args:
        counts: Number of inputs by outcome.
        faults: Faults with the input's number.
    """

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def count(self, ending: str) -> None:
        """Count the outcome of an input."""
        self.counts[ending] += 1

    def fault(self, number: int, what: object, message: str) -> None:
        """Add a fault.

        Args:
            number: The input's number.
            what: The injected fault.
            message: The wrong outcome.
        """
        self.faults.append(f"number {number}, {what}:\n{message}")


def drilled(
    what: str | None,
    targets: Sequence[Any],
    prepare: Callable[[Path], Path],
    drill: Callable[..., Found],
    *,
    inputs: int,
) -> int:
    """Run a drill on all targets, or the given ones, and print the results.

    Args:
        what: Description of the command.
        targets: The targets; each has a ``name``.
        prepare: Makes the common input in a new folder, and returns the folder.
        drill: Runs the drill on one target: folder, target, ``inputs`` and ``seed``.
        inputs: Default number of inputs of each target.

    Returns:
        The exit code: 1 if there was a fault.
    """
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--inputs", type=int, default=inputs, help="inputs of each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--targets", help="comma-separated names (default: all)")
    arguments = parser.parse_args()
    named = arguments.targets.split(",") if arguments.targets else None
    chosen = [target for target in targets if named is None or target.name in named]
    console, faults = Console(highlight=False, soft_wrap=True), 0
    with tempfile.TemporaryDirectory() as made:
        folder = prepare(Path(made) / "made")
        for target in chosen:
            result = drill(folder, target, inputs=arguments.inputs, seed=arguments.seed)
            for fault in result.faults:
                console.print(f"{target.name}, {fault}", markup=False)
            endings = ", ".join(f"{count} {ending}" for ending, count in result.counts.items())
            message = f"{arguments.inputs} inputs, {endings}; {len(result.faults)} faults"
            console.print(f"{target.name}: {message}", markup=False)
            faults += len(result.faults)
    return 1 if faults else 0
