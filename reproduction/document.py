"""Parts of documents that commands print: ``<!-- temper ... -->`` up to ``<!-- /temper -->``."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path

from temper.errors import DataError
from temper.files import write_text

Run = Callable[[list[str]], object]

ROOT = Path(__file__).resolve().parent.parent
"""Root of the clone, the working directory of the commands."""
_BLOCK = re.compile(r"^<!-- (temper [^\n]+) -->\n.*?^<!-- /temper -->$", re.MULTILINE | re.DOTALL)


def documents() -> list[Path]:
    """Return the documents of the clone with such parts."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    return [page for page in pages if _BLOCK.search(page.read_text(encoding="utf-8"))]


def filled(text: str, run: Run) -> str:
    """Return a document with updated output of its commands.

    Args:
        text: The document.
        run: Runs a command line of ``temper`` and returns a true value if it failed.

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
    """Update the output of commands in all documents.

    Args:
        run: As in `filled`.

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


def print_or_write(table: str, page: Path | None) -> None:
    """Print a table, or write it between ``<!-- table -->`` and ``<!-- /table -->`` of a page."""
    if page is None:
        sys.stdout.write(table + "\n")
        return
    before, begin, rest = page.read_text(encoding="utf-8").partition("<!-- table -->")
    _, end, after = rest.partition("<!-- /table -->")
    write_text(page, f"{before}{begin}\n{table}\n{end}{after}")


def table_command(description: str | None, table: Callable[[], str]) -> None:
    """Print a table, or write it into a page: ``[--write PAGE]``."""
    parser = ArgumentParser(description=description)
    parser.add_argument("--write", type=Path)
    print_or_write(table(), parser.parse_args().write)


def run_or_print(
    description: str | None,
    run: Callable[..., None],
    table: Callable[[], str],
    *,
    folders: Sequence[str] = ("data", "scratch"),
) -> None:
    """Parse the command line of a comparison: ``run --FOLDER ...`` or ``table [--write PAGE]``.

    Args:
        description: Help text.
        run: Runs the missing cells; it is called with the folders.
        table: Returns the table of all results.
        folders: Names of the folders.
    """
    parser = ArgumentParser(description=description)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    for name in folders:
        running.add_argument(f"--{name}", type=Path, required=True)
    commands.add_parser("table").add_argument("--write", type=Path)
    given = parser.parse_args()
    if given.command == "run":
        run(*(getattr(given, name) for name in folders))
    else:
        print_or_write(table(), given.write)


def _output(command: str, run: Run) -> str:
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(io.StringIO()) as printed:
        failed = run(shlex.split(command)[1:])
    if failed:
        raise DataError(f"`{command}` failed; a document shows its output.")
    return printed.getvalue()
