"""Parts of documents that commands print: ``<!-- temper ... -->`` up to ``<!-- /temper -->``."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Callable
from pathlib import Path

from temper.errors import DataError
from temper.files import write_text

Run = Callable[[list[str]], object]

ROOT = Path(__file__).resolve().parent.parent
"""Root of the clone, where the commands are given."""
_BLOCK = re.compile(r"^<!-- (temper [^\n]+) -->\n.*?^<!-- /temper -->$", re.MULTILINE | re.DOTALL)


def documents() -> list[Path]:
    """Return the documents of the clone that hold such parts."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    return [page for page in pages if _BLOCK.search(page.read_text(encoding="utf-8"))]


def filled(text: str, run: Run) -> str:
    """Return a document with every such part made anew.

    Args:
        text: The document.
        run: Runs a command line of ``temper``; what it returns is true where the command failed.

    Raises:
        DataError: A command fails.
    """

    def block(match: re.Match[str]) -> str:
        command = match[1]
        return (
            f"<!-- {command} -->\n`{command}` prints:\n\n{_output(command, run)}\n<!-- /temper -->"
        )

    return _BLOCK.sub(block, text)


def write_documents(run: Run) -> list[Path]:
    """Make the parts of all documents anew.

    Args:
        run: As `filled` takes it.

    Returns:
        The documents that changed.
    """
    changed = []
    for page in documents():
        before = page.read_text(encoding="utf-8")
        after = filled(before, run)
        if after != before:
            write_text(page, after)
            changed.append(page)
    return changed


def write_table(page: Path, table: str) -> None:
    """Write a table between the lines ``<!-- table -->`` and ``<!-- /table -->`` of a page."""
    before, begin, rest = page.read_text(encoding="utf-8").partition("<!-- table -->")
    _, end, after = rest.partition("<!-- /table -->")
    write_text(page, f"{before}{begin}\n{table}\n{end}{after}")


def _output(command: str, run: Run) -> str:
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(io.StringIO()) as printed:
        failed = run(shlex.split(command)[1:])
    if failed:
        raise DataError(f"`{command}` fails, and a document holds what it prints.")
    return printed.getvalue()
