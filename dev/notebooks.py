"""Run the notebooks of examples/ and store their output: ``python -m dev.notebooks [NAME ...]``.

Progress (stderr), times and the folder of the run are not stored, so a notebook changes only with
its results. It needs the optional dependencies ``notebooks``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SHOWN = ("text/html", "text/plain")


def stored(output: Any) -> Any:
    """Reduce a cell's output to the part that is stored, and return it; None if nothing is.

    Args:
        output: An output of the notebook format, version 4.
    """
    if output["output_type"] == "stream":
        return output if output["name"] == "stdout" else None
    kept = next((kind for kind in SHOWN if kind in output.get("data", {})), None)
    # A progress bar is a widget; its text is useless on a page.
    if kept is None or "application/vnd.jupyter.widget-view+json" in output["data"]:
        return None
    output["data"] = {kept: output["data"][kept]}
    return output


def run(path: Path) -> None:
    """Run a notebook in an empty folder, and store its output in it."""
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        nbclient.NotebookClient(
            notebook, timeout=1200, kernel_name="python3", resources=resources, record_timing=False
        ).execute()
    # The state of progress bars.
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [part for part in map(stored, cell.outputs) if part is not None]
            for output in cell.outputs:
                if "text" in output:
                    output.text = output.text.replace(f"{folder}/", "")
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        if path.stem in (sys.argv[1:] or [path.stem]):
            run(path)
