"""What differs between a text and its changed form, word by word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Literal

Kind = Literal["same", "removed", "added"]
Segment = tuple[Kind, str]

CUT = " […] "
"""Stands where the middle of a long stretch was left out."""

# A word with its apostrophes, a stretch of white space, or one other character.
_PARTS = re.compile(r"\w+(?:['’]\w+)*|\s+|[^\w\s]")


def word_diff(original: str, changed: str) -> list[Segment]:
    """Split two texts into what both have, what only the first and what only the second has.

    Args:
        original: The text as it was.
        changed: The text as it became.

    Returns:
        Segments in reading order, what was removed before what was added in its place. ``same`` and
        ``removed`` segments joined give ``original``; ``same`` and ``added`` ones give ``changed``.

    Example:
        >>> word_diff("a good film", "a g00d film")
        [('same', 'a '), ('removed', 'good'), ('added', 'g00d'), ('same', ' film')]
    """
    first, second = _PARTS.findall(original), _PARTS.findall(changed)
    # The heuristic for long inputs would call frequent words noise and miss that they are the same.
    codes = SequenceMatcher(None, first, second, autojunk=False).get_opcodes()
    pieces = [("".join(first[a:b]), "".join(second[c:d]), tag) for tag, a, b, c, d in codes]
    segments: list[Segment] = []
    removed = added = ""
    for place, (before, after, tag) in enumerate(pieces):
        inside = 0 < place < len(pieces) - 1
        # A space between two changed words belongs to the change: it reads as one.
        if tag != "equal" or (inside and before.isspace()):
            removed, added = removed + before, added + after
            continue
        segments += _changed(removed, added)
        removed = added = ""
        segments.append(("same", before))
    return segments + _changed(removed, added)


def shorten(segments: Sequence[Segment], *, longest: int) -> list[Segment]:
    """Leave out the middle of long segments, so that the changes stay in sight.

    Args:
        segments: What `word_diff` gave.
        longest: Characters of a segment that stay, >= 2; half of them at either end.

    Returns:
        As many segments; those that were cut hold `CUT` where the middle was.

    Example:
        >>> shorten([("same", "abcdefgh")], longest=4)
        [('same', 'ab […] gh')]
    """
    half = longest // 2
    return [
        (kind, text if len(text) <= longest else text[:half] + CUT + text[len(text) - half :])
        for kind, text in segments
    ]


def _changed(removed: str, added: str) -> list[Segment]:
    found: list[Segment] = [("removed", removed)] if removed else []
    return [*found, ("added", added)] if added else found
