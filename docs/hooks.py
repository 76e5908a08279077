"""Pages of the site that are not written in docs/: those of the root, commands and the package.

MkDocs calls `on_config`, `on_files` and `on_page_markdown` (`mkdocs.yml`); nothing here is
imported by Temper.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from textwrap import indent
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "temper"
COPIED = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
}
"""Page -> file of the root whose text it has."""
GALLERY = {
    "robustness/roberta-large-sentiment": "Plain fine-tuning, UEGR and RoAST on 3,000 rows of "
    "SST-2: shift, adversarial sets, embedding attacks, noise, calibration and OOD detection.",
    "trust-sst2/minilm-sst2": "One model on 2,000 rows of SST-2, under the 14 shifted and "
    "attacked sets of the sentiment suite: what `temper evaluate` reports.",
    "effect-confirm/minilm-emotion": "Emotions in tweets, four classes: plain fine-tuning, more "
    "epochs, and two methods.",
}
"""Kept study -> what its report shows."""


def on_config(config: Any) -> Any:
    """Name every page in the navigation, and the version on every page."""
    import temper

    config["nav"] = navigation(config["nav"])
    config["copyright"] = f"Temper {temper.__version__}, Apache-2.0"
    # mike, which keeps a site a version, says so; without it no page has versions to choose from.
    if "MIKE_DOCS_VERSION" in os.environ:
        config["extra"]["version"] = {"provider": "mike"}
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Add the made pages to those that lie in docs/."""
    from mkdocs.structure.files import File

    for name, text in {**made(), **reports()}.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Draw formulas and tabs, and lead links from docs/ to files of the root to their pages."""
    return with_tabs(with_formulas(to_pages(markdown, above="../")))


def with_tabs(markdown: str) -> str:
    """Return a page with two tabs for each shell block that a Python block follows directly."""
    block = r"^```(?:{})\n(?:(?!```).*\n)*```\n"
    pairs = re.compile(f"({block.format('bash|sh')})\n({block.format('python|py')})", re.MULTILINE)

    def tabs(match: re.Match[str]) -> str:
        titles = ("Command line", "Python")
        return "\n".join(
            f'=== "{title}"\n\n{indent(code, "    ")}'
            for title, code in zip(titles, match.groups(), strict=True)
        )

    return pairs.sub(tabs, markdown)


def with_formulas(markdown: str) -> str:
    """Return a page with MathML, which browsers draw without a script, for blocks of LaTeX."""
    from latex2mathml.converter import convert

    def formula(match: re.Match[str]) -> str:
        return f'<div class="formula">{convert(match[1], display="block")}</div>\n'

    return re.sub(r"^```math\n(.*?)^```\n", formula, markdown, flags=re.MULTILINE | re.DOTALL)


def navigation(entries: Iterable[Any]) -> list[Any]:
    """Return the navigation with each ``folder/*`` in place of which stand its pages.

    Args:
        entries: ``nav`` of mkdocs.yml: names of pages, and titles with entries of their own.
    """
    entries = list(entries)
    named = set(names_in(entries))
    written = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    pages = sorted((written | made().keys()) - named)

    def expand(entry: Any) -> list[Any]:
        if isinstance(entry, Mapping):
            return [
                {title: [page for part in parts for page in expand(part)]}
                for title, parts in entry.items()
            ]
        return [page for page in pages if fnmatch(page, entry)] if "*" in entry else [entry]

    return [page for entry in entries for page in expand(entry)]


def names_in(entries: Iterable[Any]) -> list[str]:
    """Return the pages that a navigation names, in its order."""
    names: list[str] = []
    for entry in entries:
        if isinstance(entry, Mapping):
            for parts in entry.values():
                names += names_in(parts)
        else:
            names.append(entry)
    return names


@cache
def made() -> dict[str, str]:
    """Return the text of every page that is made: by its name, in Markdown."""
    pages = {page: moved((ROOT / source).read_text("utf-8")) for page, source in COPIED.items()}
    for path in (ROOT / "examples").glob("*.ipynb"):
        pages[f"notebooks/{path.stem}.md"] = notebook(path)
    return {**pages, "commands.md": commands(), "gallery.md": gallery(), **reference()}


def gallery() -> str:
    """Return the page that links to the reports of some kept studies."""
    lines = ["# Reports", "", "Pages that `temper report` writes, of studies of this repository:"]
    for study, shows in GALLERY.items():
        command = f"temper report reproduction/results/{study}"
        lines += ["", f"- [{study}]({report_of(study)}): {shows}", f"  `{command}`"]
    return "\n".join(lines) + "\n"


def report_of(study: str) -> str:
    """Return the name of a study's report on the site."""
    return f"gallery/{study.partition('/')[0]}.html"


def reports() -> dict[str, str]:
    """Return the reports of the gallery, HTML by the name of the file."""
    from temper.report import build

    pages = {}
    with tempfile.TemporaryDirectory() as folder:
        for study in GALLERY:
            file = build(ROOT / "reproduction" / "results" / study, Path(folder) / "report.html")
            pages[report_of(study)] = file.read_text("utf-8")
    return pages


def notebook(path: Path) -> str:
    """Return a notebook's texts, code and stored output as a page, with the command to open it."""
    parts = []
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        parts += map(stored_output, cell.get("outputs", ()))
    run = f"A notebook of the clone: `jupyter lab examples/{path.name}`."
    return "\n\n".join([parts[0], run, *parts[1:]]) + "\n"


def stored_output(output: Mapping[str, Any]) -> str:
    """Return an output of a notebook's cell: HTML as it is, text in a block."""
    data = output.get("data", {})
    if "text/html" in data:
        # Markdown would end a block of HTML at an empty line.
        return re.sub(r"\n\s*\n", "\n", "".join(data["text/html"]).strip())
    text = "".join(data.get("text/plain", output.get("text", "")))
    return f"```text\n{text.strip()}\n```"


def moved(text: str) -> str:
    """Return a text of the root as it stands in docs/: its links lead on."""
    return to_pages(re.sub(r"\]\(docs/", "](", text), above="")


def to_pages(text: str, *, above: str) -> str:
    """Lead links to files of the root, which lie ``above``, to the pages that have their text."""
    for page, source in COPIED.items():
        text = text.replace(f"]({above}{source})", f"]({page})")
    return text


def commands() -> str:
    """Return the page of the command line: each command with what it takes."""
    import typer

    from reproduction.command import parser
    from temper.cli.app import app

    parts = ["# Commands\n\n`temper COMMAND --help` prints the same.\n"]
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        parts.append(f"## temper {name}\n\n{command.help}\n")
        if name == "reproduce":
            parts.append(f"```text\n{parser().format_help()}```\n")
            continue
        context = command.make_context(name, [], resilient_parsing=True)
        records = filter(None, (parameter.get_help_record(context) for parameter in command.params))
        rows = [f"| `{taken}` | {cell(meaning)} |" for taken, meaning in records]
        parts.append("\n".join(["| it takes | meaning |", "|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def cell(text: str) -> str:
    """Return a text as it can stand in a cell of a table."""
    return re.sub(r"([|*<])", r"\\\1", " ".join(text.split()))


def reference() -> dict[str, str]:
    """Return the pages of the API: the package's own names, and one for each part of it."""
    import temper

    first = ["# temper", "", "What `import temper` gives. The pages beside hold the rest.", ""]
    for name in sorted(temper.__all__, key=str.lower):
        first += [f"::: temper.{name}", ""]
    pages = {"api/index.md": "\n".join(first)}
    for folder in sorted(path.parent for path in PACKAGE.glob("*/__init__.py")):
        # What the command line takes has a page of its own.
        if folder.name != "cli":
            pages[f"api/{folder.name}.md"] = area(f"temper.{folder.name}", folder.rglob("*.py"))
    pages["api/foundations.md"] = area("Foundations", PACKAGE.glob("[a-z]*.py"))
    return pages


def area(title: str, paths: Iterable[Path]) -> str:
    """Return the page of some modules."""
    lines = [f"# {title}", ""]
    for path in sorted(paths):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        if not any(part.startswith("_") for part in parts[:-1]):
            name = ".".join(part for part in parts if part != "__init__")
            lines += [f"::: {name}", ""]
    return "\n".join(lines)
