"""pyproject.toml declares what the sources import, all of it and nothing more, and it is pinned."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[2]
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


def test_every_dependency_is_pinned_to_a_version_it_allows() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pins = {canonical(name): version for name, version in pins.items()}
    for requirement in declared(extras=True):
        version = pins.get(canonical(requirement.name))
        assert version is not None, f"{requirement.name} is not in constraints.txt"
        assert requirement.specifier.contains(version), f"{requirement} excludes {version}"


def test_every_interpreter_since_3_11_is_supported_and_all_places_say_which() -> None:
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
