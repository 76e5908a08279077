"""Name scores for readers: titles, labels, units, and numbers as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from temper.errors import CheckpointError
from temper.functional.scores import SCORES

# Order of the table. A perspective that is not listed keeps its own name and comes last.
GROUPS = {
    "summary": "Average relative improvement",
    "rank": "Mean rank",
    "task": "In distribution",
    "shift": "Distribution shift",
    "adversarial": "Adversarial sets",
    "groups": "Groups",
    "embedding_attack": "Embedding attack",
    "text_attack": "Text attack",
    "embedding_noise": "Embedding noise",
    "token_corruption": "Token corruption",
    "worst_case": "Worst case",
    "smoothness": "Smoothness",
    "calibration": "Calibration",
    "anomaly": "Anomaly detection",
    "representation": "Representation",
    "cost": "Cost",
}

CORRUPTIONS = {"random": "random tokens", "mask": "masked tokens", "drop": "dropped tokens"}

# Scores in the metric's own unit.
_OF_THE_METRIC = frozenset({"area", "drop"})
_PLAIN = frozenset({"mse", "brier", "nll", "cka"})
_ANY_SIZE = frozenset({"jacobian_norm", "hessian_norm", "queries"})
_HUNDREDTHS = frozenset({"mcc", "pearson", "spearman"})

# What perspectives call a condition, as people read it; others keep their names.
_CONDITIONS = {
    ("text_attack", "characters"): "character edits",
    ("text_attack", "swaps"): "word swaps",
    ("text_attack", "masked"): "masked-model swaps",
    ("calibration", "temperature"): "after temperature scaling",
    ("anomaly", "clean"): "by max softmax",
    ("anomaly", "max_logit"): "by the largest logit",
    ("anomaly", "energy"): "by the energy",
    ("anomaly", "mahalanobis"): "by the Mahalanobis distance",
    ("anomaly", "knn"): "by the nearest neighbours",
    ("worst_case", "all"): "under all perturbations",
    ("groups", "worst"): "worst group",
    ("groups", "mean"): "mean of groups",
}
# They say what the score's own name says, or stand in words of their own.
_UNSAID = frozenset({"clean", "noise", "jacobian", "hessian", "cka"})
_NORMS = {"l2": "\u2113\u2082", "linf": "\u2113\u221e"}

ABSENT = "\u2013"  # en dash: a number that does not exist

# Markdown lets HTML and table bars through, so text from data must not hold any.
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "\\|", "\n": " ", "\r": " "}
_ESCAPES |= {mark: f"\\{mark}" for mark in "\\`*_[]"}


@dataclass(frozen=True)
class Unit:
    """Say how a score is shown.

    Args:
        scale: Factor from the stored to the shown number.
        decimals: Digits after the point.
        sign: What stands behind the score's name, empty for a bare number.
        significant: Digits of a number of any size, in place of ``decimals``; None where sizes are
            alike.
    """

    scale: float
    decimals: int
    sign: str
    significant: int | None = None

    def text(self, value: float | None, *, signed: bool = False) -> str:
        """Write a number, or a dash where there is none.

        Args:
            value: The stored number.
            signed: Whether a positive number carries a plus.

        Returns:
            The number with a true minus sign, as wide as a plus, so that decimals align.

        Example:
            >>> Unit(100.0, 2, "%").text(0.8765)
            '87.65'
        """
        if value is None:
            return ABSENT
        shown = value * self.scale
        digits = f".{self.significant}g"
        if self.significant is None:
            shown, digits = round(shown, self.decimals), f".{self.decimals}f"
        # Adding zero turns -0.0 into 0.0: a difference of nothing has no direction.
        return f"{shown + 0.0:{'+' if signed else ''}{digits}}".replace("-", "\u2212")


PERCENT = Unit(100.0, 2, "%")
HUNDREDTHS = Unit(100.0, 2, "\u00d7 100")
PLAIN = Unit(1.0, 4, "")
ANY_SIZE = Unit(1.0, 4, "", significant=3)
IMPROVEMENT = Unit(1.0, 2, "%")
RANK = Unit(1.0, 2, "")
_COSTS = {
    "rows_per_second": Unit(1.0, 1, ""),
    "tokens_per_second": Unit(1.0, 0, ""),
    "seconds_per_row": Unit(1000.0, 3, "ms"),
    "memory_mib": Unit(1.0, 1, "MiB"),
}


def unit(name: str, metric: str) -> Unit:
    """Return how a score is shown.

    Args:
        name: Score name of docs/formats.md.
        metric: The task's metric, whose unit the area under a curve has.

    Returns:
        Per cent for shares, hundredths for correlations, the bare number for losses and for
        unknown scores, three digits for norms, milliseconds and MiB for costs.
    """
    if name in _COSTS:
        return _COSTS[name]
    if name in _ANY_SIZE:
        return ANY_SIZE
    if name == "relative_improvement":
        return IMPROVEMENT
    if name == "mean_rank":
        return RANK
    name = metric if name in _OF_THE_METRIC else name
    if name in _HUNDREDTHS:
        return HUNDREDTHS
    return PLAIN if name in _PLAIN or name not in SCORES else PERCENT


def title(name: str) -> str:
    """Return a score's name as people read it; an unknown one keeps its own.

    Example:
        >>> title("ece_10")
        'ECE (10 bins)'
    """
    return SCORES[name].title if name in SCORES else name


def higher_is_better(name: str, stated: bool | None = None) -> bool | None:
    """Return a score's direction: as stated with it, else by its name.

    Args:
        name: Score name.
        stated: What ``scores.json`` says, None where it says nothing.

    Returns:
        Whether higher is better; None of a known score of which neither is better.

    Raises:
        CheckpointError: Neither is known, so that no difference could be called better or worse.

    Example:
        >>> higher_is_better("ece_10"), higher_is_better("auroc"), higher_is_better("cka")
        (False, True, None)
    """
    if stated is not None:
        return stated
    if name not in SCORES:
        raise CheckpointError(
            f"Score {name!r} has no direction: scores.json gives no `higher_is_better` for it. "
            "Evaluate the model again."
        )
    return SCORES[name].higher_is_better


def number(value: float) -> str:
    """Write a setting-like number without needless digits.

    Example:
        >>> number(0.25), number(1.0)
        ('0.25', '1')
    """
    return f"{value:g}"


def radius(absolute: float | None, relative: float | None, *, of: str = "norm") -> str:
    """Write an attack's budget or a noise's size; empty where there is none.

    Args:
        absolute: The size itself.
        relative: The size over the embedding's own.
        of: What the relative size is measured against.

    Example:
        >>> radius(0.25, None), radius(None, 0.1)
        ('0.25', '0.1 of the norm')
    """
    if absolute is not None:
        return number(absolute)
    return "" if relative is None else f"{number(relative)} of the {of}"


def corruption(kind: str, rate: float | None) -> str:
    """Write a kind of token corruption, with its rate where there is one.

    Args:
        kind: The condition of its rows; an unknown one keeps its name.
        rate: Share of corrupted tokens to expect, None for an area over all rates.

    Example:
        >>> corruption("random", 0.1), corruption("drop", None)
        ('random tokens, 10 %', 'dropped tokens')
    """
    name = CORRUPTIONS.get(kind, kind)
    return name if rate is None else f"{name}, {number(round(100 * rate, 4))} %"


def condition(perspective: str, name: str) -> str:
    """Write what was done to the examples; empty where nothing was.

    Args:
        perspective: Which perspective did it.
        name: The condition of its rows.

    Example:
        >>> condition("embedding_attack", "pgd"), condition("text_attack", "characters")
        ('PGD', 'character edits')
    """
    if perspective == "groups" and name not in ("worst", "mean"):
        return name  # it comes from the data, where "clean" may be a group like any other
    if (perspective, name) in _CONDITIONS:
        return _CONDITIONS[perspective, name]
    if name in _UNSAID:
        return ""
    if perspective == "embedding_attack":
        return name.upper()
    if perspective == "token_corruption":
        return corruption(name, None)
    return name.replace("_", " ")


def attack(
    name: str,
    *,
    norm: str | None = None,
    size: str = "",
    steps: float | None = None,
    restarts: float | None = None,
) -> str:
    """Write an attack, noise or corruption with its budget.

    Args:
        name: What was done, as `condition` writes it.
        norm: ``l2`` or ``linf``, None without one.
        size: The budget in words, empty without one.
        steps: Gradient steps; one goes without saying.
        restarts: The same of restarts.

    Example:
        >>> attack("PGD", norm="l2", size="radius 0.25", steps=5)
        'PGD ℓ₂ radius 0.25 (5 steps)'
    """
    effort = ", ".join(
        plural(int(count), noun)
        for count, noun in ((steps, "step"), (restarts, "restart"))
        if count is not None and count > 1
    )
    parts = (name, _NORMS.get(norm or "", norm or ""), size, effort and f"({effort})")
    return " ".join(part for part in parts if part)


def pipe_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table in Markdown.

    Args:
        header: Headings of the columns.
        rows: Cells of each line.

    Example:
        >>> print(pipe_table(["a", "b"], [["1", "2"]]))
        | a | b |
        |---|---|
        | 1 | 2 |
    """
    first, *rest = (f"| {' | '.join(texts)} |" for texts in (header, *rows))
    return "\n".join([first, "|" + "---|" * len(header), *rest])


def plural(count: int, noun: str) -> str:
    """Count things in words.

    Example:
        >>> plural(1, "seed"), plural(3, "seed")
        ('1 seed', '3 seeds')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def listed(names: list[str]) -> str:
    """Join names as a sentence does.

    Example:
        >>> listed(["a", "b", "c"])
        'a, b and c'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# What may differ between notices that say the same: a name in quotes, a run in brackets, a number.
_DETAIL = re.compile(r"'[^']*'|\([^()]*\)|\d+(\.\d+)?")


def folded(notices: Iterable[str]) -> list[str]:
    """Write notices that differ in names or numbers alone as one line with a count.

    Args:
        notices: In the order in which they are to stand.

    Returns:
        The first of each kind, with the number of the others behind it where there are two or more.

    Example:
        >>> folded([f"Set {name!r} lacks 3 rows." for name in "abc"])
        ["Set 'a' lacks 3 rows. (And 2 more like it.)"]
    """
    kinds: dict[str, list[str]] = {}
    for notice in dict.fromkeys(notices):
        kinds.setdefault(_DETAIL.sub("", notice), []).append(notice)
    said = []
    for first, *others in kinds.values():
        # Two lines say more than one line and a count of one.
        counted = f"{first} (And {len(others)} more like it.)"
        said += [counted] if len(others) > 1 else [first, *others]
    return said


def escaped(text: str) -> str:
    r"""Write text so that Markdown shows it as it is.

    Example:
        >>> print(escaped("a|b <i>"))
        a\|b &lt;i&gt;
    """
    return "".join(_ESCAPES.get(letter, letter) for letter in text)
