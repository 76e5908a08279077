"""What a person reads is in plain words: no word of `WORDS`, no name of `NAMES`, short sentences.

`MOST` has the number of lines of each area that still break the rules. A number may only fall: lower
it after rewriting an area, and take the line out when it is 0.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path


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
MOST: dict[str, int] = {}
SENTENCES: dict[str, int] = {}


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


if __name__ == "__main__":
    for table in counted():
        print(sum(table.values()), dict(sorted(table.items())))
