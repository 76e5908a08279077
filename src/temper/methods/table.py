"""The table of methods for the README and the docs, made from the registry and kept up to date.

A document holds it between the lines ``<!-- methods -->`` and ``<!-- /methods -->``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from temper.errors import DataError
from temper.methods.registry import entry, names

OPENING, CLOSING = "<!-- methods -->", "<!-- /methods -->"
HEADINGS = ("method", "what it does", "cost", "memory", "claims", "source")
CARDS = Path("docs") / "methods"


def markdown(folder: Path | str = ".") -> str:
    """Write the table of all methods, each with a link to its card.

    Args:
        folder: Folder of the document that will hold the table, a clone's root or its folder of
            cards; a method without a card there is named without a link.

    Returns:
        Lines of Markdown.
    """
    cards = _cards(Path(folder))
    lines = [f"| {' | '.join(HEADINGS)} |", f"|{'---|' * len(HEADINGS)}"]
    for name in names():
        found, card = entry(name), cards / f"{name}.md"
        link = Path(os.path.relpath(card, folder)).as_posix()
        shown = f"[`{name}`]({link})" if card.exists() else f"`{name}`"
        cells = (shown, found.summary, found.cost, found.memory, found.claims, found.paper)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def between(text: str, opening: str, closing: str, made: Callable[[], str]) -> str:
    """Return a document with what stands between two marking lines made anew.

    Args:
        text: The document.
        opening: The line before.
        closing: The line after.
        made: Returns what is to stand between them, whole lines.

    Raises:
        DataError: If the markers are missing, or do not stand once each and in order.
    """
    before, first, rest = text.partition(opening + "\n")
    _, last, after = rest.partition(closing)
    if not first or not last or opening in rest or closing in after:
        raise DataError(
            f"The document must hold the lines {opening!r} and {closing!r} once each, in that "
            "order: the table is written between them."
        )
    return f"{before}{first}{made()}{last}{after}"


def _cards(folder: Path) -> Path:
    return folder if folder.resolve().parts[-2:] == CARDS.parts else folder / CARDS
