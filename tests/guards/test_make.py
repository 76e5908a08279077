"""The make targets and pyproject.toml agree with the sources and the command line."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import typer
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from temper.cli.app import app

ROOT = Path(__file__).resolve().parents[2]

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def demo(*variables: str) -> tuple[list[str], dict[str, object]]:
    """Return what ``make demo`` would run: the environment it sets and the options it passes."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    result = subprocess.run(
        ["make", "--dry-run", "demo", *variables],
        cwd=ROOT,
        env=plain,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = result.stdout.replace("\\\n", " ").splitlines()
    (line,) = [line for line in lines if "temper compare" in line]
    words = shlex.split(line)
    start = words.index("compare")
    command = typer.main.get_command(app).commands["compare"]
    return words[: start - 1], command.make_context("compare", words[start + 1 :]).params


@needs_make
def test_the_demo_runs_offline_on_the_generated_corpus() -> None:
    environment, options = demo()
    assert "HF_HUB_OFFLINE=1" in environment
    assert options["model"] == "minilm"
    assert options["data"] == "demo"
    assert options["recipes"] == "plain,uegr_one_pass"
    assert options["seeds"] == "0,1,2"
    assert str(options["out"]) == "runs/demo"
    assert options["shift"]
    assert options["anomaly"]


@needs_make
def test_the_demo_accepts_other_data_with_a_limited_number_of_rows() -> None:
    environment, options = demo("DATA=../shared/data/sst2")
    assert "HF_HUB_OFFLINE=1" not in environment
    assert options["data"] == "../shared/data/sst2"
    assert (options["rows"], options["eval_rows"]) == (2000, 500)
    assert str(options["out"]) != "runs/demo"


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Needed though no source imports it: the Trainer refuses to start without accelerate.
UNIMPORTED = {"accelerate"}


def canonical(name: str) -> str:
    """Return a distribution's name as the package index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(*, extras: bool) -> list[Requirement]:
    """Return the requirements of the package, with or without its extras."""
    lines = list(PROJECT["dependencies"])
    if extras:
        lines += [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    return [Requirement(line) for line in lines]


@cache
def imported() -> set[str]:
    """Return the top-level third-party modules that the sources import."""
    names = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - {"temper", "reproduction"}


def test_every_import_is_declared() -> None:
    owners = packages_distributions()
    known = {canonical(requirement.name) for requirement in declared(extras=True)}
    undeclared = {
        module
        for module in imported()
        if not {canonical(name) for name in owners.get(module, [module])} & known
    }
    assert undeclared == set()


def test_every_dependency_is_used() -> None:
    owners = packages_distributions()
    used = {canonical(name) for module in imported() for name in owners.get(module, [module])}
    needed = {canonical(requirement.name) for requirement in declared(extras=False)}
    assert needed - used - UNIMPORTED == set()


def pins() -> dict[str, str]:
    """Return the version of each distribution that requirements/*.txt pins."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "requirements").glob("*.txt")]
    result = [pin for text in texts for pin in re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.M)]
    return {canonical(name): version for name, version in result}


def test_every_dependency_is_pinned_to_a_version_it_allows() -> None:
    pinned = pins()
    for requirement in declared(extras=True):
        version = pinned.get(canonical(requirement.name))
        assert version is not None, f"{requirement.name} has no pin: run `make requirements`"
        assert requirement.specifier.contains(version), f"{requirement} excludes {version}"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda path: path.stem
)
def test_every_pin_but_torch_has_hashes(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("\\\n", "")
    lines = [line for line in text.splitlines() if "==" in line and not line.startswith("#")]
    assert lines
    without = [line for line in lines if not re.search(r"--hash=sha256:[0-9a-f]{64}", line)]
    assert without == (lines if path.stem == "torch" else [])


@pytest.mark.slow
def test_no_pinned_version_has_a_known_vulnerability() -> None:
    tool = ROOT / ".venv-tools" / "bin" / "pip-audit"
    if not tool.exists():
        pytest.skip("needs the tools of `make audit`")
    words = ["--strict", "--disable-pip", "--no-deps", "--progress-spinner", "off"]
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        words += ["-r", str(path)]
    audit = subprocess.run([tool, *words], capture_output=True, text=True)
    if audit.returncode == 1 and "known vulnerabilit" not in audit.stderr:
        pytest.skip(f"no response from the vulnerability service: {audit.stderr.splitlines()[-1]}")
    assert audit.returncode == 0, audit.stdout + audit.stderr


def test_supported_interpreters_are_equal_in_all_files() -> None:
    versions = [f"3.{minor}" for minor in range(11, 15)]
    bounds = SpecifierSet(PROJECT["requires-python"])
    asked = [f"3.{minor}" for minor in range(9, 17)]
    assert [version for version in asked if bounds.contains(version)] == versions
    prefix = "Programming Language :: Python :: 3."
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if prefix in line]
    assert named == versions
    words = f"Python {versions[0]} to {versions[-1]}"
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert words in (ROOT / "README.md").read_text(encoding="utf-8")
    assert words in makefile
    assert all(f"python{version}" in makefile for version in versions)
