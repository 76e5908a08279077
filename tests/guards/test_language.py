"""Texts for people use plain words and short sentences: no word of `WORDS`, no name of `NAMES`.

`MOST` has the number of lines of each area that still break the rules, `SENTENCES` that of long
sentences. Lower a number after rewriting an area.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from temper.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
WORDS = {
    r"\b(told|tells?) (apart|of|what|which|whether|how)\b|\bnot told\b": "significant, or reports",
    r"\b(inside|outside) the noise\b": "not significant, or significant (95% CI)",
    r"\bforeign texts?\b|\bsense of anomal": "out-of-distribution texts, OOD detection",
    r"\bwhat needs no training\b": "post-hoc methods",
    r"\b(dear|dearer|dearest|whoever|nobody|somebody|mended|as ever|besides?|gone on with)\b": (
        "plain words"
    ),
    r"\b(is|are) said\b|\b(say|says) of\b": "name the thing",
    r"\bWhat (of|becomes|is|a|an|the|some|it|comes|stands|no)\b(?![^.]*\?)": "name the thing",
    r"\bof a (training|run|regression|study|predictor|model) (it|none|all|the|what)\b": (
        "subject, verb, object"
    ),
    r"\w(optimis|normalis|regularis|penalis|quantis)|\bbehaviour|labelled\b": "American spelling",
    r"(?<![\w.:\\/\"'`*=(\[{])\.\d+\b": "0.5, not .5",
    r"\d %": "37%, not 37 %",
}
NAMES = {"told", "said", "found", "place", "places", "held", "own", "share", "shares"}
"""Names of variables that do not say what they are."""
LONGEST_SENTENCE = 35
"""Words of a sentence of a guide."""
MOST: dict[str, int] = {
    "benchmarks.md": 3,
    "deploy.md": 3,
    "errors.py": 1,
    "evaluation.md": 2,
    "files.py": 2,
    "formats.md": 5,
    "heads.md": 2,
    "multi-task.md": 1,
    "predictors.md": 3,
    "reproduction.md": 2,
    "results.py": 1,
    "scale.md": 5,
    "temper/api": 1,
    "temper/backward": 13,
    "temper/calibration": 16,
    "temper/cli": 4,
    "temper/cluster": 2,
    "temper/data": 22,
    "temper/display": 10,
    "temper/evaluation": 46,
    "temper/export": 4,
    "temper/functional": 22,
    "temper/methods": 3,
    "temper/models": 26,
    "temper/report": 31,
    "temper/service": 2,
    "temper/study": 10,
    "temper/testing": 9,
    "temper/training": 19,
    "trainer.md": 1,
}
SENTENCES: dict[str, int] = {
    "add-a-perspective.md": 1,
    "base-size.md": 8,
    "benchmarks.md": 18,
    "effect.md": 1,
    "evaluation.md": 3,
    "formats.md": 15,
    "reliability.md": 1,
    "scale.md": 2,
    "trainer.md": 2,
    "which-model.md": 1,
}


def sources() -> list[Path]:
    return sorted((ROOT / "src" / "temper").rglob("*.py"))


def guides() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def area(path: Path) -> str:
    """Return the package of a source file, or the file's own name."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[1:3] if parts[0] == "src" and len(parts) > 3 else parts[-1:])


def prose(text: str) -> Iterator[str]:
    """Yield the comments and strings of Python code, line by line."""
    for found in tokenize.generate_tokens(io.StringIO(text).readline):
        # From Python 3.12 on an f-string is several tokens.
        if found.type == tokenize.COMMENT or "STRING" in tokenize.tok_name[found.type]:
            yield from found.string.splitlines()


def names(text: str) -> Iterator[str]:
    """Yield the banned names to which Python code assigns, or over which it loops."""
    pattern = re.compile(r"(?:^|\bfor |, )\s*(\w+)(?=(?:, \w+)* (?:=|in)\s)", re.MULTILINE)
    yield from (name for name in pattern.findall(text) if name in NAMES)


def words(lines: Iterator[str] | list[str]) -> list[str]:
    """Return the lines that have a banned word."""
    return [line for line in lines if any(re.search(pattern, line) for pattern in WORDS)]


def without_code(text: str) -> str:
    """Return a page without code, tables, comments and the targets of links."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->|^\|.*?$|^ {4}.*?$", "", text, flags=re.M | re.S)
    # A heading may be a question.
    text = re.sub(r"^#.*$", "", text, flags=re.M)
    return re.sub(r"`[^`]*`", "X", re.sub(r"\]\([^)]*\)", "]", text))


def long_sentences(text: str) -> list[str]:
    """Return the sentences of a page that have too many words."""
    blocks = re.split(
        r"\n\s*\n|\n(?=[-*#>] |\d+\. )|(?<=[.:?!])\s+(?=[A-Z`*\[(])", without_code(text)
    )
    return [block for block in blocks if len(block.split()) > LONGEST_SENTENCE]


def counted() -> tuple[Counter[str], Counter[str]]:
    """Return the lines that break the rules and the long sentences, by area."""
    lines, sentences = Counter[str](), Counter[str]()
    for path in sources():
        text = path.read_text(encoding="utf-8")
        lines[area(path)] += len(words(prose(text))) + len(list(names(text)))
    for path in guides():
        text = path.read_text(encoding="utf-8")
        lines[area(path)] += len(words(without_code(text).splitlines()))
        sentences[area(path)] += len(long_sentences(text))
    return +lines, +sentences


def test_no_area_breaks_the_rules_more_often_than_before() -> None:
    lines, sentences = counted()
    for found, most in ((lines, MOST), (sentences, SENTENCES)):
        assert {
            name: (count, most.get(name, 0))
            for name, count in found.items()
            if count > most.get(name, 0)
        } == {}


def test_no_limit_is_higher_than_needed() -> None:
    lines, sentences = counted()
    for found, most in ((lines, MOST), (sentences, SENTENCES)):
        assert {name: (most[name], found[name]) for name in most if found[name] < most[name]} == {}


@pytest.mark.parametrize(
    "line",
    [
        "# What of the rows is left out.",
        "# It is written beside the model.",
        "# The difference is inside the noise.",
        "# The behaviour of an optimiser.",
        "# A rate of .5.",
        "# About 37 % of the rows.",
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


def test_no_help_text_has_none() -> None:
    for name, command in get_command(app).commands.items():
        for parameter in command.params:
            assert not re.search(r"\bNone\b", getattr(parameter, "help", None) or ""), name
