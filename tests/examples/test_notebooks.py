"""The notebooks are small, have stored output, use existing names, and run."""

from __future__ import annotations

import ast
import builtins
import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from dev.notebooks import stored

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_of(notebook: dict[str, Any]) -> list[str]:
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def bound(tree: ast.AST) -> set[str]:
    """Return every name that code binds, wherever it does."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return names


def unknown_names(cells: list[str]) -> list[str]:
    """Return the names that cells use before anything binds them, and imports that find nothing."""
    known, faults = set(dir(builtins)), []
    modules: dict[str, Any] = {}
    for cell in cells:
        tree = ast.parse(cell)
        known |= bound(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    modules[alias.asname or alias.name] = importlib.import_module(alias.name)
            elif isinstance(node, ast.ImportFrom):
                module = importlib.import_module(node.module or "")
                faults += [
                    f"{node.module}.{alias.name}"
                    for alias in node.names
                    if not hasattr(module, alias.name)
                ]
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id not in known:
                faults.append(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module = modules.get(node.value.id)
                if module is not None and not hasattr(module, node.attr):
                    faults.append(f"{node.value.id}.{node.attr}")
    return faults


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) == 3


@each_notebook
def test_a_notebook_is_short_and_stores_output_in_order(path: Path) -> None:
    cells = read(path)["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert outputs, "run: python -m dev.notebooks"
    assert {output["output_type"] for output in outputs} <= {"stream", "execute_result"}
    text = json.dumps(outputs)
    assert "stderr" not in text
    assert "/tmp/" not in text
    assert '<div class=\\"temper\\">' in text
    assert path.stat().st_size < 100_000
    assert sum(len(cell["source"]) for cell in code) <= 80
    assert all(len(line.rstrip("\n")) <= 100 for cell in code for line in cell["source"])


def test_progress_and_widgets_are_not_stored() -> None:
    bar = {"output_type": "stream", "name": "stderr", "text": "50%"}
    widget = {"text/plain": "bar", "application/vnd.jupyter.widget-view+json": {}}
    frame = {"text/plain": "a", "text/html": "<b>a</b>", "image/png": "..."}
    assert stored(bar) is None
    assert stored({"output_type": "display_data", "data": widget}) is None
    kept = stored({"output_type": "execute_result", "data": frame})
    assert kept["data"] == {"text/html": "<b>a</b>"}


@each_notebook
def test_every_cell_compiles_and_every_name_in_it_exists(path: Path) -> None:
    assert unknown_names(code_of(read(path))) == []


def test_names_that_do_not_exist_are_noticed() -> None:
    cells = ["import temper", "temper.evaluat(run)", "from pathlib import Pth"]
    assert unknown_names(cells) == ["temper.evaluat", "run", "pathlib.Pth"]


@pytest.mark.slow
@each_notebook
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "the notebooks are run with nbclient (extra notebooks)"
    nbclient = pytest.importorskip("nbclient", reason=reason)
    nbformat = pytest.importorskip("nbformat", reason=reason)
    pytest.importorskip("ipykernel", reason=reason)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(
        notebook, timeout=1200, kernel_name="python3", resources=resources
    ).execute()
    shown = [
        output["data"]["text/html"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "text/html" in output.get("data", {})
    ]
    assert any('<div class="temper">' in html for html in shown)
    assert list(tmp_path.glob("runs/**/report.html"))
