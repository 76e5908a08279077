"""Mutation testing with mutmut: ``python -m dev.mutation.mutants functional forward``.

mutmut makes one change at a time (a sign, a bound, a constant) and runs those of `TESTS` that call
the changed function (`dev.mutation.mutant_tests` limits their time). A mutant that no test detects
is a gap in the tests, or is listed in ``survivors.toml`` with a reason. Results are kept in
``build/mutants``: a stopped command resumes, functions that have changed are mutated again, and
survivors are tried again, because there may be new tests.

    python -m dev.mutation.mutants functional/norms.py
    python -m dev.mutation.mutants functional forward backward --number 60 --seed 3

The second takes 60 mutants of each package, drawn by the seed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import random
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from temper.functional.proportions import wilson

ROOT = Path(__file__).resolve().parents[2]
KEPT, REASONS = ROOT / "build" / "mutants", Path(__file__).with_name("survivors.toml")
LEAST = 0.9
"""Required fraction of detected mutants of a target."""
NOTICED = {"killed", "timeout", "segfault", "caught by type check"}
TESTS = {
    "functional": [
        "functional",
    ],
    "heads": [
        "heads",
    ],
    "forward": [
        "forward/test_objective.py",
        "forward/test_perturbations.py",
        "forward/test_smoothness.py",
        "forward/test_submodels.py",
        "contracts/test_methods.py",
        "methods/test_reference.py",
        "methods/test_attack_for_less.py",
        "methods/test_attack_off.py",
        "methods/test_distil.py",
        "methods/test_embedding_noise.py",
        "methods/test_freelb.py",
        "methods/test_hidden_cut.py",
        "methods/test_jachess.py",
        "methods/test_label_smoothing.py",
        "methods/test_mixup.py",
        "methods/test_pgd.py",
        "methods/test_r3f.py",
        "methods/test_roast.py",
        "methods/test_smart.py",
        "methods/test_smoothness_gradients.py",
        "methods/test_vat.py",
    ],
    "backward": [
        "backward",
        "contracts/test_methods.py",
        "methods/test_child_tuning.py",
        "methods/test_ema.py",
        "methods/test_layers.py",
        "methods/test_lp_ft.py",
        "methods/test_mixout.py",
        "methods/test_rec_adam.py",
        "methods/test_roast.py",
        "methods/test_soup.py",
        "methods/test_w_cons.py",
        "methods/test_weight_ascent.py",
        "methods/test_wise_ft.py",
    ],
    "methods": [
        "methods",
        "contracts/test_methods.py",
    ],
}
"""Package -> the folders and files in ``tests`` with its tests."""
PLUGIN = "dev.mutation.mutant_tests"
MARKS = "not slow and not gpu and not network and not browser"


def workplace(target: str) -> Path:
    """Make the working folder of mutmut for a package or a file.

    Args:
        target: Path below ``src/temper``.

    Raises:
        SystemExit: There is no such package or file, or it has no tests.
    """
    source, package = Path("src/temper", target), Path(target).parts[0]
    if package not in TESTS or not (ROOT / source).exists():
        raise SystemExit(
            f"There is no {source}, or its tests are not listed. Name one of "
            f"{', '.join(TESTS)}, or a file of them."
        )
    folder = KEPT / target.replace("/", "-").removesuffix(".py")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("src", "tests"):
        if not (link := folder / name).is_symlink():
            link.symlink_to(ROOT / name)
    settings = {
        "source_paths": [f"src/temper/{package}"],
        "only_mutate": [source.as_posix() if source.suffix else f"{source.as_posix()}/*"],
        # Copy everything else unchanged; keep files that are mutated already.
        "also_copy": [
            f"src/temper/{path.name}"
            for path in sorted((ROOT / "src" / "temper").iterdir())
            if path.name not in (package, "__pycache__")
        ],
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "-p", PLUGIN, "-m", MARKS],
        "pytest_add_cli_args_test_selection": [f"tests/{each}" for each in TESTS[package]],
        "use_git_change_detection": False,
        # Seconds; generous, because the machine may be busy.
        "timeout_constant": 30.0,
    }
    # JSON is valid TOML for these values.
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    text = "\n".join([project, "[tool.mutmut]", *lines, ""])
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return folder


def mutmut(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run mutmut in a folder of `workplace`, and return its output."""
    # With CI=1 hypothesis draws the same inputs every time.
    environment = {**os.environ, "CI": "1", "OMP_NUM_THREADS": "1"}
    # For `dev.mutation.mutant_tests`; temper is imported from the mutated copy.
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-m", "mutmut", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def statuses(folder: Path) -> dict[str, str]:
    """Return the status of each mutant in a folder of `workplace`, without those `left_out`."""
    from mutmut.stats import status_by_exit_code

    result = {}
    for path in sorted((folder / "mutants" / "src").rglob("*.py.meta")):
        file = path.with_suffix("")
        module = ".".join(file.relative_to(folder / "mutants" / "src").with_suffix("").parts)
        out = {f"{module}.{name}" for name in left_out(file.read_text(encoding="utf-8"))}
        codes = json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"]
        result.update({name: status_by_exit_code[codes[name]] for name in codes.keys() - out})
    return result


def meaning(function: ast.FunctionDef) -> str:
    """Return the syntax tree of a function without the parts that tests need not check.

    These are the defaults of arguments, since mutmut takes them from the unchanged function; the
    texts of errors and warnings, since tests match only a part; ``strict=`` of a zip over equal
    lengths; ``device=``, since tests that need a GPU do not run; and the names of random streams
    (``rng.local``, ``rng.shared``), which are arbitrary.
    """
    function.name, function.args.defaults, function.args.kw_defaults = "", [], []
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            node.keywords = [each for each in node.keywords if each.arg not in UNASKED]
        if isinstance(node, ast.Raise) or getattr(getattr(node, "func", 0), "attr", 0) in WORDS:
            for word in ast.walk(node):
                if isinstance(word, ast.Constant) and isinstance(word.value, str | None):
                    word.value = ""
    return ast.dump(function)


UNASKED = {"strict", "device"}
WORDS = {"local", "shared", "warning", "tell"}
"""Calls whose strings are ignored like those of errors."""


def left_out(source: str) -> set[str]:
    r"""Return the mutants in a file of mutmut that have the same `meaning` as the original.

    Example:
        >>> file = "def x_f__mutmut_orig(a=1): return a"
        >>> file += "\ndef x_f__mutmut_1(a=2): return a\ndef x_f__mutmut_2(a=1): return -a"
        >>> left_out(file)
        {'x_f__mutmut_1'}
    """
    meanings: dict[str, str] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and "__mutmut_" in node.name:
            name = node.name
            meanings[name] = meaning(node)
    originals = {name: name.rpartition("__mutmut_")[0] + "__mutmut_orig" for name in meanings}
    return {
        name
        for name, original in originals.items()
        if name != original and meanings[name] == meanings[original]
    }


def drawn(names: Sequence[str], number: int | None, seed: str) -> list[str]:
    """Return some of the mutants, chosen by the seed; all if ``number`` is None."""
    if number is None or number >= len(names):
        return sorted(names)
    return sorted(random.Random(seed).sample(sorted(names), number))


def check(target: str, *, number: int | None, seed: int, jobs: int) -> dict[str, str]:
    """Run or resume the mutants of a target, and return the status of each.

    Args:
        target: Path below ``src/temper``.
        number: Number of drawn mutants; None takes all.
        seed: Seed of the draw.
        jobs: Number of processes.

    Raises:
        SystemExit: mutmut failed.
    """
    # Imported here, because mutmut sets the start method of processes globally.
    from mutmut.__main__ import create_mutants
    from mutmut.configuration import reset_config
    from mutmut.utils.file_utils import copy_also_copy_files, copy_src_dir

    folder = workplace(target)
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        reset_config()
        copy_src_dir()
        copy_also_copy_files()
        create_mutants(jobs)
    known = statuses(folder)
    chosen = drawn(list(known), number, f"{seed} {target}")
    if left := [name for name in chosen if known[name] not in NOTICED]:
        done = mutmut(folder, "run", "--max-children", str(jobs), *left)
        if done.returncode:
            raise SystemExit(f"mutmut failed on {target}:\n{done.stdout[-4000:]}\n{done.stderr}")
        known = statuses(folder)
    return {name: known[name] for name in chosen}


def change(shown: str) -> str:
    r"""Return the change of a mutant from mutmut's diff.

    Example:
        >>> change("--- a.py\n+++ a.py\n@@ -1 +1 @@\n def f(x):\n-    return x\n+    return -x")
        'return x -> return -x'
    """
    lines = [line for line in shown.splitlines() if not line.startswith(HEADS)]
    sides = [" ".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+"]
    return " -> ".join(sides)


HEADS = ("---", "+++")


def function(mutant: str) -> str:
    """Return the dotted name of a mutant's function.

    Example:
        >>> function("temper.functional.norms.x_length__mutmut_3")
        'temper.functional.norms.length'
        >>> function("temper.functional.norms.xǁL2ǁproject__mutmut_1")
        'temper.functional.norms.L2.project'
    """
    module, _, name = mutant.rpartition("__mutmut_")[0].rpartition(".")
    return f"{module}.{'.'.join(name.removeprefix('x').removeprefix('_').strip('ǁ').split('ǁ'))}"


def survivors(target: str, result: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield function, change and status of each mutant that no test has detected."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant

    folder = workplace(target)
    for mutant, status in result.items():
        if status not in NOTICED:
            path = Path("src", *mutant.split(".")[:-1]).with_suffix(".py")
            with contextlib.chdir(folder):
                shown = get_diff_for_mutant(mutant, path=path)
            yield function(mutant), change(shown), status


def main() -> int:
    """Mutate the given targets, and print the survivors without a reason."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="+", help="packages or files below src/temper")
    parser.add_argument("--number", type=int, help="random mutants of each target (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    options = parser.parse_args()
    reasons = tomllib.loads(REASONS.read_text(encoding="utf-8"))
    console, failed = Console(highlight=False, soft_wrap=True), False
    for target in options.targets:
        result = check(target, number=options.number, seed=options.seed, jobs=options.jobs)
        left = list(survivors(target, result))
        unexplained = [each for each in left if each[1] not in reasons.get(each[0], {})]
        for name, changed, status in unexplained:
            console.print(f"{name} ({status}): {changed}", markup=False)
        fraction = 1 - len(left) / len(result)
        low, high = wilson(len(result) - len(left), len(result))
        summary = (
            f"{target}: {len(result)} mutants, {fraction:.1%} detected ({low:.1%}-{high:.1%}), "
        )
        summary += f"{len(left)} survived, {len(unexplained)} of them without a reason"
        console.print(summary, markup=False)
        failed |= bool(unexplained) or fraction < LEAST
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
