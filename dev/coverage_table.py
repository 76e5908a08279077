"""Print the line and branch coverage of the tests: ``python -m dev.coverage_table``."""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import coverage

SOURCE = Path("src/temper")


def table(files: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table in Markdown.

    Args:
        files: Path -> its ``summary`` in coverage's JSON report.
    """
    packages: dict[str, Counter[str]] = {}
    for path, file in files.items():
        parts = Path(path).relative_to(SOURCE).parts
        package = parts[0] if len(parts) > 1 else "temper"
        for name in (package, "all"):
            packages.setdefault(name, Counter()).update(file["summary"])
    yield "| package | lines | reached | branches | reached |"
    yield "|---|---:|---:|---:|---:|"
    for name in sorted(packages, key=lambda name: (name == "all", name)):
        result = packages[name]
        lines, branches = result["num_statements"], result["num_branches"]
        reached = (
            _share(result["covered_lines"], lines),
            _share(result["covered_branches"], branches),
        )
        shown = name if name == "all" else f"`{name}`"
        yield f"| {shown} | {lines:,} | {reached[0]}| {branches:,} | {reached[1]}|"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} % " if whole else ""


def main() -> None:
    """Print the table of all packages."""
    measured = coverage.Coverage()
    measured.load()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        measured.json_report(outfile=str(file))
        content = json.loads(file.read_text(encoding="utf-8"))
    sys.stdout.writelines(f"{line}\n" for line in table(content["files"]))


if __name__ == "__main__":
    main()
