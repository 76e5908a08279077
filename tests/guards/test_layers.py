"""The import contracts of pyproject.toml hold, and each of them notices a planted fault."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]

# One wrong import for each contract, by the first words of the contract's name.
FAULTS = {
    "Layers": ("functional/planted_layers.py", "import temper.data"),
    "Evaluation": ("evaluation/planted_methods.py", "import temper.methods"),
    "The report": ("report/planted_models.py", "import temper.models"),
    "Transformers and PEFT": ("backward/planted_transformers.py", "import transformers"),
    "The datasets library": ("data/planted_datasets.py", "import datasets"),
    "Plotting": ("study/planted_plotting.py", "import plotly"),
    "The terminal": ("methods/planted_terminal.py", "import rich"),
    "Reproduction": ("study/planted_reproduction.py", "import reproduction.claims"),
}


def contracts(tree: Path) -> tuple[dict[str, bool], str]:
    """Run import-linter on ``tree/src`` and return which contracts hold, and what it printed."""
    shutil.copy(ROOT / "pyproject.toml", tree)
    code = "from importlinter.cli import lint_imports_command as run; run()"
    result = subprocess.run(
        [sys.executable, "-c", code, "--no-cache"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree / "src"), "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    output = result.stdout + result.stderr
    found = re.findall(r"^(.*\S) +(KEPT|BROKEN)\b", output, re.MULTILINE)
    return {name: verdict == "KEPT" for name, verdict in found}, output


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of the sources that a test may spoil."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("src", "reproduction"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    return tmp_path


def test_every_contract_holds(tree: Path) -> None:
    held, output = contracts(tree)
    assert len(held) == len(FAULTS), output
    assert all(held.values()), output


def test_every_contract_notices_a_planted_fault(tree: Path) -> None:
    for file, line in FAULTS.values():
        (tree / "src" / "temper" / file).write_text(f'"""Planted."""\n\n{line}\n')
    held, output = contracts(tree)
    for words in FAULTS:
        broken = [name for name, kept in held.items() if name.startswith(words) and not kept]
        assert broken, f"{words}: not noticed\n{output}"


def test_a_module_without_a_layer_is_noticed(tree: Path) -> None:
    (tree / "src" / "temper" / "stray.py").write_text('"""Planted."""\n')
    held, output = contracts(tree)
    assert "stray" in output
    assert not all(held.values()) or not held


def in_a_circle(package: str) -> list[str]:
    """Return files that import each other in a circle, the first again at the end; none mostly."""
    graph = grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_files_import_each_other_in_a_circle() -> None:
    assert in_a_circle("temper") == []


def test_a_planted_circle_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "planted_circle"
    folder.mkdir()
    for name, other in (("__init__", ""), ("one", "two"), ("two", "one")):
        line = f"def late():\n    import planted_circle.{other}\n" if other else ""
        (folder / f"{name}.py").write_text(line, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert set(in_a_circle("planted_circle")) == {"planted_circle.one", "planted_circle.two"}
