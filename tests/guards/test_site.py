"""The documentation site: its navigation names every page, its links lead on, and it builds."""

from __future__ import annotations

import importlib.util
import os
import posixpath
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

import temper

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FENCED = re.compile(r"^```.*?^```$|^ {4}[^\n]*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`]*`")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]*)\)")


@cache
def hooks() -> ModuleType:
    """Return the hooks that MkDocs calls, without MkDocs."""
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def pages() -> dict[str, str]:
    """Return every page of the site: its name in docs/, and its text in Markdown."""
    written = {
        str(path.relative_to(DOCS)): path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")
    }
    assert not written.keys() & hooks().made().keys()
    return {**written, **hooks().made()}


def entries() -> list[object]:
    """Return the navigation of mkdocs.yml, its last section."""
    written = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    result: list[object] = []
    for line in written.splitlines():
        indent, name = re.fullmatch(r"( +)- (.+)", line).groups()  # type: ignore[union-attr]
        if name.endswith(":"):
            result.append({name.removesuffix(":"): []})
        else:
            assert len(indent) == 6, line
            next(iter(result[-1].values())).append(name)  # type: ignore[attr-defined]
    return result


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings."""
    result = set()
    for heading in HEADING.findall(FENCED.sub("", text)):
        plain = re.sub(r"\]\([^)]*\)", "", heading)
        result.add(re.sub(r"[^\w\s-]", "", plain).strip().lower().replace(" ", "-"))
    return result


def astray(all_pages: dict[str, str]) -> list[str]:
    """Return the links that lead to no page, file or heading of the site."""
    faults = []
    for name, text in all_pages.items():
        for link in LINK.findall(CODE.sub("", FENCED.sub("", text))):
            path, _, anchor = link.partition("#")
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path or name))
            target = name if not path else target
            reports = set(map(hooks().report_of, hooks().GALLERY))
            there = target in {*all_pages, *reports} or (DOCS / target).is_file()
            if not there or (anchor and anchor not in anchors(all_pages.get(target, ""))):
                faults.append(f"{name}: {link}")
    return faults


def test_the_navigation_names_every_page_once() -> None:
    named = hooks().names_in(hooks().navigation(entries()))
    assert sorted(named) == sorted(pages())


def test_a_folder_with_a_star_lists_all_remaining_pages() -> None:
    named = hooks().navigation(["methods/uegr.md", {"Methods": ["methods/*"]}, "nowhere/*"])
    assert named[0] == "methods/uegr.md"
    rest = named[1]["Methods"]
    assert "methods/plain.md" in rest
    assert "methods/uegr.md" not in rest
    assert len(named) == 2


def test_every_link_leads_to_a_page_and_a_heading() -> None:
    assert astray(pages()) == []


@pytest.mark.parametrize("link", ["b.md", "../b.md", "a.md#below", "#below", "picture.svg"])
def test_a_link_astray_is_noticed(link: str) -> None:
    fine = "# Top\n\n[up](#top), [code](../c/d.md), `[not](a link)`\n"
    site = {"a.md": f"# Top\n[x]({link})", "c/d.md": "# D", "c/e.md": fine}
    assert astray(site) == [f"a.md: {link}"]


def test_llms_txt_links_pages_of_the_site() -> None:
    links = LINK.findall((DOCS / "llms.txt").read_text(encoding="utf-8"))
    site = {re.sub(r"README\.md$", "index.md", name).replace(".md", ".html") for name in pages()}
    assert len(links) > 20
    assert [link for link in links if link not in site] == []


def test_a_shell_block_and_the_python_block_after_it_become_tabs() -> None:
    pair = "```bash\ntemper fit a.csv\n```\n\n```python\nif True:\n    fit()\n```\n"
    alone = "```bash\nls\n```\n\nAnd:\n\n```python\nls()\n```\n"
    tabs = hooks().with_tabs(f"Before\n\n{pair}\nAfter\n\n{alone}")
    assert tabs == (
        'Before\n\n=== "Command line"\n\n    ```bash\n    temper fit a.csv\n    ```\n\n'
        '=== "Python"\n\n    ```python\n    if True:\n        fit()\n    ```\n\n'
        f"After\n\n{alone}"
    )


def test_the_reference_contains_every_public_name_and_package() -> None:
    made = hooks().made()
    shown = re.findall(r"^::: temper\.(\w+)$", made["api/index.md"], re.MULTILINE)
    assert sorted(shown) == sorted(temper.__all__)
    modules = re.findall(r"^::: (\S+)$", "\n".join(made.values()), re.MULTILINE)
    for part in ("temper.errors", "temper.functional.norms", "temper.methods.uegr"):
        assert modules.count(part) == 1
    assert [name for name in modules if "._" in name or name.startswith("temper.cli")] == []


def test_the_page_of_commands_contains_every_option() -> None:
    page = hooks().made()["commands.md"]
    for line in ("## temper train", "`--learning-rate", "## temper verify", "--seeds", "--scale"):
        assert line in page


class Assets(HTMLParser):
    """Notes what a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what is loaded; what one may click is not."""
        if tag != "a":
            values = [value or "" for name, value in attrs if name in ("src", "href", "srcset")]
            self.loaded += [value for value in values if re.match(r"(https?:)?//", value)]


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_no_external_file(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs the extra docs: make docs")
    pytest.importorskip("material", reason="needs the extra docs: make docs")
    pytest.importorskip("mkdocstrings", reason="needs the extra docs: make docs")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    for name in pages():
        html = tmp_path / re.sub(r"README\.md$", "index.md", name).replace(".md", ".html")
        read = Assets()
        read.feed(html.read_text(encoding="utf-8"))
        assert read.loaded == [], name
    style = "".join(path.read_text("utf-8") for path in tmp_path.rglob("*.css"))
    assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", style)
    # Material would fetch a library for it.
    assert not [name for name, text in pages().items() if "```mermaid" in text]
    assert (tmp_path / "search" / "search_index.json").is_file()
