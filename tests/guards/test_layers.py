"""Import contracts hold and notice planted faults; the public API is short and documented."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

import temper

ROOT = Path(__file__).resolve().parents[2]

# One wrong import for each contract, by the first words of the contract's name.
FAULTS = {
    "Layers": ("functional/planted_layers.py", "import temper.data"),
    "Evaluation": ("evaluation/planted_methods.py", "import temper.methods"),
    "The report": ("report/planted_models.py", "import temper.models"),
    "Transformers and PEFT": ("backward/planted_transformers.py", "import transformers"),
    "The datasets library": ("data/planted_datasets.py", "import datasets"),
    "The terminal": ("methods/planted_terminal.py", "import rich"),
    "The reproduction": ("study/planted_reproduction.py", "import reproduction.claims"),
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
    results = re.findall(r"^(.*\S) +(KEPT|BROKEN)\b", output, re.MULTILINE)
    return {name: verdict == "KEPT" for name, verdict in results}, output


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of the sources that a test may spoil."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("src", "reproduction"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    return tmp_path


def test_every_contract_holds(tree: Path) -> None:
    kept, output = contracts(tree)
    assert len(kept) == len(FAULTS), output
    assert all(kept.values()), output


def test_every_contract_notices_a_planted_fault(tree: Path) -> None:
    for file, line in FAULTS.values():
        (tree / "src" / "temper" / file).write_text(f'"""Planted."""\n\n{line}\n')
    stored, output = contracts(tree)
    for words in FAULTS:
        broken = [name for name, kept in stored.items() if name.startswith(words) and not kept]
        assert broken, f"{words}: not noticed\n{output}"


def test_a_module_without_a_layer_is_noticed(tree: Path) -> None:
    (tree / "src" / "temper" / "stray.py").write_text('"""Planted."""\n')
    kept, output = contracts(tree)
    assert "stray" in output
    assert not all(kept.values()) or not kept


def in_a_circle(package: str) -> list[str]:
    """Return files that import each other in a circle, the first again at the end; none mostly."""
    graph = grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_there_are_no_circular_imports() -> None:
    assert in_a_circle("temper") == []


def test_a_planted_circle_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "planted_circle"
    folder.mkdir()
    for name, other in (("__init__", ""), ("one", "two"), ("two", "one")):
        line = f"def late():\n    import planted_circle.{other}\n" if other else ""
        (folder / f"{name}.py").write_text(line, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert set(in_a_circle("planted_circle")) == {"planted_circle.one", "planted_circle.two"}


MOST_NAMES = 25
# Parameters that documentation may leave out: they are what Python says they are.
PLAIN = {"self", "cls", "args", "kwargs"}


def parameters(thing: object) -> list[str]:
    """Return the names that a caller may pass to a function or class."""
    if not callable(thing):
        return []
    return [name for name in inspect.signature(thing).parameters if name not in PLAIN]


def undocumented(thing: object) -> list[str]:
    """Return the parameters that a docstring leaves out, its own or one that it inherits from."""
    family = inspect.getmro(thing) if inspect.isclass(thing) else (thing,)
    text = "\n".join(inspect.getdoc(member) or "" for member in family)
    fields = getattr(thing, "model_fields", {})
    described = {name for name, field in fields.items() if field.description}
    return [name for name in parameters(thing) if f"{name}:" not in text and name not in described]


def test_the_front_door_is_short_and_sorted_by_no_accident() -> None:
    assert len(temper.__all__) <= MOST_NAMES
    assert len(set(temper.__all__)) == len(temper.__all__)


@pytest.mark.parametrize("name", sorted(temper.__all__))
def test_public_names_exist_with_a_docstring_and_typed_parameters(name: str) -> None:
    thing = getattr(temper, name)
    if isinstance(thing, str):
        return
    assert inspect.getdoc(thing), f"temper.{name} has no docstring"
    assert undocumented(thing) == []


def test_a_missing_parameter_is_noticed() -> None:
    def act(first: int, second: int) -> None:
        """Act.

        Args:
            first: The first.
        """

    assert undocumented(act) == ["second"]


def test_the_package_file_contains_no_logic() -> None:
    tree = ast.parse((ROOT / "src" / "temper" / "__init__.py").read_text(encoding="utf-8"))
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While | ast.Try)]
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    assert loops == []
    assert classes == []
