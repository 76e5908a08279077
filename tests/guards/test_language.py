"""Texts for people use plain words and short sentences: no word of `WORDS`, no name of `NAMES`.

`LEFT` has the number of lines, names and long sentences of each area that still break the rules.
Lower it after rewriting an area; never raise it.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from temper.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
WORDS = {
    r"\btold\b|\btells? (apart|of|what|which|whether|how)\b": "significant, or reports",
    r"\b(inside|outside) the noise\b": "not significant, or significant (95% CI)",
    r"\bforeign texts?\b|\bsense of anomal": "out-of-distribution texts, OOD detection",
    r"\bwhat needs no training\b": "post-hoc methods",
    r"\b(dear|dearer|dearest|whoever|nobody|somebody|mended|as ever|besides?|gone on with)\b": (
        "plain words"
    ),
    r"\b(is|are) said\b|\b(say|says) (of|what|which|whether|how|why|where)\b": "name the thing",
    r"\b(stands?|lies?) (in|for|at|on|above|below|behind|under|there|here|alone)\b": "is in",
    r"\b(None|nothing|empty|0) where\b|\bwhere there (is|are) (no|none|any)\b": "if, not where",
    r"\b(that|what) (is|are) none\b|\bwhat it (holds|says|gives)\b": "name the thing",
    r"\b(anew|alike|but for|as they are|of (its|their) own|shares? of)\b": "plain words",
    r"\bWhat (of|becomes|is|a|an|the|some|it|comes|stands|no)\b(?![^.]*\?)": "name the thing",
    r"\bof a (training|run|regression|study|predictor|model) (it|none|all|the|what)\b": (
        "subject, verb, object"
    ),
    r"\w(optimis|normalis|regularis|penalis|quantis)|\bbehaviour|labelled\b": "American spelling",
    r"(?<![\w.:\\/\"'`*=(\[{])\.\d+\b": "0.5, not .5",
    r"\d %": "37%, not 37 %",
}
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
NAMES = {
    "told",
    "said",
    "found",
    "each",
    "at",
    "place",
    "places",
    "held",
    "own",
    "share",
    "shares",
    "slots",
}
LONGEST_SENTENCE = 35  # words
LEFT: dict[str, int] = {
    "temper/cli": 1,
    "temper/export": 3,
    "reproduction": 1,
}


def sources() -> list[Path]:
    return sorted((ROOT / "src" / "temper").rglob("*.py"))


def tools() -> list[Path]:
    """Return the code of benchmarks, drills, reproduction and examples; only its prose counts."""
    folders = ("dev", "reproduction", "examples")
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def guides() -> list[Path]:
    """Return the guides, the cards of methods, the results, and the pages of the root."""
    folders = (ROOT / "docs" / folder for folder in ("", "design", "methods", "results"))
    pages = [page for folder in folders for page in folder.glob("*.md")]
    return [*sorted(pages), *(ROOT / name for name in PAGES)]


def area(path: Path) -> str:
    """Return the package of a source file, or the folder of another file."""
    folder = path.parent.relative_to(ROOT).parts
    return "/".join(folder[1:3] if folder[:1] == ("src",) else folder) or "."


def prose(text: str) -> Iterator[str]:
    """Yield the comments and strings of Python code, line by line."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        # From Python 3.12 on an f-string is several tokens.
        if token.type == tokenize.COMMENT or "STRING" in tokenize.tok_name[token.type]:
            yield from token.string.splitlines()


def names(text: str) -> Iterator[str]:
    """Yield the banned names to which Python code assigns, or over which it loops."""
    pattern = re.compile(r"(?:^|\bfor |, )\s*(\w+)(?=(?:, \w+)* (?:=|in)\s)", re.MULTILINE)
    yield from (name for name in pattern.findall(text) if name in NAMES)


def words(lines: Iterator[str] | list[str]) -> list[str]:
    return [line for line in lines if any(re.search(pattern, line) for pattern in WORDS)]


def without_code(text: str) -> str:
    """Return a page without code, tables, comments and the targets of links."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->|^\|.*?$|^ {4}.*?$", "", text, flags=re.M | re.S)
    text = re.sub(r"^#.*$", "", text, flags=re.M)
    return re.sub(r"`[^`]*`", "X", re.sub(r"\]\([^)]*\)", "]", text))


def long_sentences(text: str) -> list[str]:
    blocks = re.split(
        r"\n\s*\n|\n(?=[-*#>] |\d+\. )|(?<=[.:?!])\s+(?=[A-Z`*\[(])", without_code(text)
    )
    return [block for block in blocks if len(block.split()) > LONGEST_SENTENCE]


def counted() -> Counter[str]:
    """Return how often each area breaks the rules."""
    counts = Counter[str]()
    for path in sources():
        text = path.read_text(encoding="utf-8")
        counts[area(path)] += len(words(prose(text))) + len(list(names(text)))
    for path in tools():
        counts[area(path)] += len(words(prose(path.read_text(encoding="utf-8"))))
    for path in guides():
        text = path.read_text(encoding="utf-8")
        counts[area(path)] += len(words(without_code(text).splitlines()))
        counts[area(path)] += len(long_sentences(text))
    return +counts


def test_no_area_breaks_the_rules_more_often_than_before() -> None:
    counts = counted()
    assert {name: count for name, count in counts.items() if count > LEFT.get(name, 0)} == {}
    lower = {name: counts[name] for name, limit in LEFT.items() if counts[name] < limit}
    assert lower == {}, "lower the numbers of LEFT to these"


@pytest.mark.parametrize(
    "line",
    [
        "# What of the rows is left out.",
        "# The difference is inside the noise.",
        "# About 37 % of the rows.",
        "# The metric, None where there is none.",
        "# What it holds stands in the record.",
    ],
)
def test_a_banned_word_is_noticed(line: str) -> None:
    assert words(prose(f"x = 1  {line}\n")) == [line]


def test_a_banned_name_is_noticed_and_code_is_not_prose() -> None:
    text = "found, rows = 1, 2\nfor place in rows:\n    kept = 0.5\nstrings = '.5'\n"
    assert list(names(text)) == ["found", "place"]
    assert words(prose(text)) == []


def test_a_long_sentence_of_a_guide_is_noticed_and_code_is_not() -> None:
    short, long = (
        "Word " + "word " * (count - 1) + "end."
        for count in (LONGEST_SENTENCE - 1, LONGEST_SENTENCE)
    )
    assert long_sentences(f"{short} {long}") == [long]
    assert long_sentences(f"```bash\n{long}\n```\n") == []


def helps(command: Any, name: str = "temper") -> Iterator[tuple[str, str]]:
    """Yield the name and the help text of a command, its options and its commands."""
    yield name, command.help or ""
    for parameter in command.params:
        yield f"{name} {parameter.name}", getattr(parameter, "help", None) or ""
    for inner, child in getattr(command, "commands", {}).items():
        yield from helps(child, f"{name} {inner}")


def with_none(texts: Iterator[tuple[str, str]]) -> list[str]:
    return [name for name, text in texts if re.search(r"\bNone\b", text)]


def test_no_help_text_has_none() -> None:
    texts = list(helps(get_command(app)))
    assert len(texts) > 200
    assert with_none(iter(texts)) == []


def test_none_in_a_help_text_is_noticed() -> None:
    made = typer.Typer(add_completion=False)

    @made.command()
    def train(seed: int = typer.Option(1, help="Seed; None draws one.")) -> None:
        """Train."""

    assert with_none(helps(get_command(made))) == ["temper seed"]
