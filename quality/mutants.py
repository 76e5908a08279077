"""Change code and see that its tests notice: ``python -m quality.mutants functional forward``.

mutmut changes one thing at a time (a sign, a bound, a constant), and runs the tests of the same
package that call the changed function. A mutant that none of them notices is a gap of the tests, or
stands with its reason in ``survivors.toml``. Results are kept in ``build/mutants``: a command that
was stopped goes on, and only functions that were changed since are mutated again.

    python -m quality.mutants functional/norms.py
    python -m quality.mutants functional forward backward --number 60 --seed 3

The second takes 60 mutants of each package, drawn by the seed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
KEPT, REASONS = ROOT / "build" / "mutants", Path(__file__).with_name("survivors.toml")
LEAST = 0.9
"""Share of the mutants of a target that must be noticed."""
NOTICED = {"killed", "timeout", "segfault", "caught by type check"}
UNCHECKED = {"not checked", "check was interrupted by user", "skipped"}
# What a line of ``mutmut results`` says.
RESULT = re.compile(r"\s+(?P<name>\S+__mutmut_\d+): (?P<status>.+)")
MARKS = "not slow and not gpu and not network and not browser"


def workplace(target: str) -> Path:
    """Make the folder in which mutmut works on a package or a file.

    Args:
        target: Path below ``src/temper``.

    Raises:
        SystemExit: There is no such package or file, or no tests of it.
    """
    source, package = Path("src/temper", target), Path(target).parts[0]
    for path in (source, Path("tests", package)):
        if not (ROOT / path).exists():
            raise SystemExit(f"There is no {path}. Name a package or a file below src/temper.")
    folder = KEPT / target.replace("/", "-").removesuffix(".py")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("src", "tests"):
        if not (link := folder / name).is_symlink():
            link.symlink_to(ROOT / name)
    settings = {
        "source_paths": [f"src/temper/{package}"],
        "only_mutate": [source.as_posix() if source.suffix else f"{source.as_posix()}/*"],
        # The rest of the package comes as it is.
        "also_copy": ["src/temper"],
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "-m", MARKS],
        "pytest_add_cli_args_test_selection": [f"tests/{package}"],
        "use_git_change_detection": False,
        # Seconds; a machine may have other work to do.
        "timeout_constant": 30.0,
    }
    # Values of TOML are written as those of JSON are, as far as these go.
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    text = "\n".join([project, "[tool.mutmut]", *lines, ""])
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return folder


def mutmut(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run mutmut in a folder of `workplace`, and return what it wrote."""
    # Hypothesis draws the same inputs every time.
    environment = {**os.environ, "CI": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "-m", "mutmut", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def statuses(folder: Path) -> dict[str, str]:
    """Return what became of each mutant, by name; nothing before they are made."""
    if not (folder / "mutants").is_dir():
        return {}
    listed = mutmut(folder, "results", "--all", "true").stdout
    return {found["name"]: found["status"] for found in RESULT.finditer(listed)}


def drawn(names: Sequence[str], number: int | None, seed: str) -> list[str]:
    """Return some of the mutants, as a function of the seed; all where ``number`` is None."""
    if number is None or number >= len(names):
        return sorted(names)
    return sorted(random.Random(seed).sample(sorted(names), number))


def check(target: str, *, number: int | None, seed: int, jobs: int) -> dict[str, str]:
    """Run the mutants of a target, or go on with them, and return what became of each.

    Args:
        target: Path below ``src/temper``.
        number: How many are drawn; None takes all.
        seed: Seed of the draw.
        jobs: Processes.

    Raises:
        SystemExit: mutmut failed.
    """
    folder = workplace(target)
    # No mutant has this name: they are made, and it is noted which test calls which function.
    made = mutmut(folder, "run", "--max-children", str(jobs), "none")
    known = statuses(folder)
    if not known:
        raise SystemExit(f"mutmut made no mutants of {target}:\n{made.stdout}\n{made.stderr}")
    chosen = drawn(list(known), number, f"{seed} {target}")
    if left := [name for name in chosen if known[name] in UNCHECKED]:
        done = mutmut(folder, "run", "--max-children", str(jobs), *left)
        if done.returncode:
            raise SystemExit(f"mutmut failed on {target}:\n{done.stdout[-4000:]}\n{done.stderr}")
        known = statuses(folder)
    return {name: known[name] for name in chosen}


def change(shown: str) -> str:
    r"""Return what a mutant changes, of the diff that ``mutmut show`` prints.

    Example:
        >>> change("--- a.py\n+++ a.py\n@@ -1 +1 @@\n def f(x):\n-    return x\n+    return -x")
        'return x -> return -x'
    """
    lines = [line for line in shown.splitlines() if not line.startswith(HEADS)]
    sides = [" ".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+"]
    return " -> ".join(sides)


HEADS = ("---", "+++")


def function(mutant: str) -> str:
    """Return the dotted name of the function that a mutant is of.

    Example:
        >>> function("temper.functional.norms.x_length__mutmut_3")
        'temper.functional.norms.length'
        >>> function("temper.functional.norms.xǁL2ǁproject__mutmut_1")
        'temper.functional.norms.L2.project'
    """
    module, _, name = mutant.rpartition("__mutmut_")[0].rpartition(".")
    return f"{module}.{'.'.join(name.removeprefix('x').removeprefix('_').strip('ǁ').split('ǁ'))}"


def survivors(target: str, found: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield function, change and status of each mutant that no test has noticed."""
    folder = workplace(target)
    for mutant, status in found.items():
        if status not in NOTICED:
            yield function(mutant), change(mutmut(folder, "show", mutant).stdout), status


def main() -> int:
    """Mutate what is named, and print what survived without a reason."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="+", help="packages or files below src/temper")
    parser.add_argument("--number", type=int, help="mutants of each target, drawn; else all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    options = parser.parse_args()
    reasons = tomllib.loads(REASONS.read_text(encoding="utf-8"))
    console, failed = Console(highlight=False, soft_wrap=True), False
    for target in options.targets:
        found = check(target, number=options.number, seed=options.seed, jobs=options.jobs)
        left = list(survivors(target, found))
        unexplained = [each for each in left if each[1] not in reasons.get(each[0], {})]
        for name, changed, status in unexplained:
            console.print(f"{name} ({status}): {changed}", markup=False)
        share = 1 - len(left) / len(found)
        said = f"{target}: {len(found)} mutants, {share:.1%} noticed, {len(left)} survived, "
        console.print(f"{said}{len(unexplained)} of them without a reason", markup=False)
        failed |= bool(unexplained) or share < LEAST
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
