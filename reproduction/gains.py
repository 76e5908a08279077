"""Gains over plain fine-tuning and over plain fine-tuning of equal compute, paired by seed."""

from __future__ import annotations

from statistics import fmean

from temper.functional.effects import Effect, effect

GAINS = (
    "In parentheses: differences from plain fine-tuning and from plain fine-tuning of equal "
    "compute, with 95% intervals."
)


def gains_table(
    values: dict[str, dict[str, dict[int, float]]], compute: dict[str, int]
) -> list[str]:
    """Return a table of means over seeds, with gains over plain fine-tuning.

    Args:
        values: Column of the study -> heading of the table -> seed -> score in percent.
        compute: Column -> how many times the epochs its compute gives plain fine-tuning, whose
            column is ``plain_x`` and that number.
    """
    headings = [*values["plain"]]
    lines = [f"| | {' | '.join(headings)} |", "|---" * (len(headings) + 1) + "|"]
    for column, scores in values.items():
        cells = []
        for heading in headings:
            cell = f"{fmean(scores[heading].values()):.1f}"
            if column in compute:
                names = ["plain", f"plain_x{compute[column]}"] if compute[column] > 1 else ["plain"]
                gains = [paired_gain(scores[heading], values[name][heading]) for name in names]
                # One seed has no interval.
                if any(gains):
                    cell += f" ({'; '.join(map(text_of, gains))})"
            cells.append(cell)
        lines.append(f"| {column} | {' | '.join(cells)} |")
    return lines


def paired_gain(
    own: dict[int, float], others: dict[int, float], *, comparisons: int = 1
) -> Effect | None:
    """Return the mean difference over paired seeds with its 95% t interval.

    Args:
        own: Score by seed.
        others: The same, of what it is compared with.
        comparisons: Number of comparisons, for Bonferroni's correction.

    Returns:
        The difference; None if it is the same at every seed, so that there is no interval.
    """
    differences = [own[seed] - others[seed] for seed in sorted(own)]
    return effect(differences, confidence=1 - 0.05 / comparisons)


def text_of(gain: Effect | None) -> str:
    """Return a gain and its interval as text, empty if there is none."""
    return "" if gain is None else f"{gain.mean:+.1f} [{gain.low:+.1f}, {gain.high:+.1f}]"
