"""Texts in reports: titles, units and directions of scores, and formatting of lists."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from temper.display.records import Value
from temper.errors import CheckpointError
from temper.functional.scores import SCORES
from temper.functional.units import PLAIN, Unit

_NORMS = {"l2": "\u2113\u2082", "linf": "\u2113\u221e"}

# Markdown lets HTML and table bars through, so text from data must not hold any.
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "\\|", "\n": " ", "\r": " "}
_ESCAPES |= {mark: f"\\{mark}" for mark in "\\`*_[]"}


def unit(name: str, metric: str) -> Unit:
    """Return the unit of a score; that of ``metric`` for the area under a curve.

    An unknown score has no unit.
    """
    facts = SCORES.get(name)
    if facts is not None and facts.unit is None:
        facts = SCORES.get(metric)
    return PLAIN if facts is None or facts.unit is None else facts.unit


def title(name: str) -> str:
    """Return the display name of a score; an unknown one keeps its name."""
    return SCORES[name].title if name in SCORES else name


def within(title: str) -> str:
    """Return a score's title for use within a sentence.

    Example:
        >>> within("Mean squared error"), within("AUROC")
        ('mean squared error', 'AUROC')
    """
    return title if title[:2].isupper() else f"{title[:1].lower()}{title[1:]}"


def higher_is_better(name: str, stated: bool | None = None) -> bool | None:
    """Return whether higher is better: as stated in ``scores.json``, else by the score's name.

    None means that neither is better.

    Raises:
        CheckpointError: The score is unknown, and ``scores.json`` does not state its direction.
    """
    if stated is not None:
        return stated
    if name not in SCORES:
        raise CheckpointError(
            f"Score {name!r} is unknown, and scores.json has no `higher_is_better` for it. Pass "
            "the file that defines its perspective with --import."
        )
    return SCORES[name].higher_is_better


def described(parameters: Mapping[str, Value], *, of: str = "norm") -> str:
    """Return the parameters of a condition as text.

    A parameter ``NAME_relative`` is a fraction of ``of``, the name of the example's size.

    Example:
        >>> described({"norm": "l2", "radius": 0.25, "steps": 5})
        'ℓ₂ radius 0.25 (5 steps)'
        >>> described({"sigma_relative": 0.1}, of="RMS")
        'sigma 0.1 of the RMS'
    """
    norm = parameters.get("norm")
    efforts = ((parameters.get(noun + "s"), noun) for noun in ("step", "restart"))
    # A single step or restart is not mentioned.
    effort = [plural(int(count), noun) for count, noun in efforts if count and int(count) > 1]
    sizes = []
    for name, value in parameters.items():
        if name in ("norm", "steps", "restarts"):
            continue
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        plain = name.removesuffix("_relative")
        sizes.append(f"{plain.replace('_', ' ')} {shown}{'' if plain == name else f' of the {of}'}")
    symbol = "" if norm is None else _NORMS.get(str(norm), str(norm))
    return " ".join(part for part in (symbol, *sizes, effort and f"({', '.join(effort)})") if part)


def pipe_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    first, *rest = (f"| {' | '.join(texts)} |" for texts in (header, *rows))
    return "\n".join([first, "|" + "---|" * len(header), *rest])


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural if needed."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def slug(heading: str) -> str:
    """Return a heading as a URL fragment or file name.

    Example:
        >>> slug("Error analysis")
        'error-analysis'
    """
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")


def listed(names: list[str]) -> str:
    """Join names as in a sentence: ``a, b and c``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# Parts in which equal notices may differ: a name in quotes, a run in brackets, a number.
_DETAIL = re.compile(r"'[^']*'|\([^()]*\)|\d+(\.\d+)?")


def folded(notices: Iterable[str]) -> list[str]:
    """Merge notices that differ only in names or numbers: keep the first, and count the others.

    Two similar notices are both kept.

    Example:
        >>> folded([f"Set {name!r} lacks 3 rows." for name in "abc"])
        ["Set 'a' lacks 3 rows. (And 2 more like it.)"]
    """
    kinds: dict[str, list[str]] = {}
    for notice in dict.fromkeys(notices):
        kinds.setdefault(_DETAIL.sub("", notice), []).append(notice)
    messages = []
    for first, *others in kinds.values():
        # For two notices, print both.
        counted = f"{first} (And {len(others)} more like it.)"
        messages += [counted] if len(others) > 1 else [first, *others]
    return messages


def escaped(text: str) -> str:
    r"""Escape text for Markdown.

    Example:
        >>> print(escaped("a|b <i>"))
        a\|b &lt;i&gt;
    """
    return "".join(_ESCAPES.get(letter, letter) for letter in text)
