"""Which gains remain with post-hoc methods on both sides and against plain fine-tuning as costly.

A method is worth its cost only if neither a post-hoc method, which any trained model can be given,
nor longer plain fine-tuning gains as much. Each further condition is tested for a gain that is
significant after Holm's correction, and all of them must hold, so no further correction is needed
(an intersection-union test).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from temper.display.cells import Comparison
from temper.display.wording import listed
from temper.report.derived import AFTER, SUMMARY
from temper.report.gains import Gain, gain_of, given_gains, improvement_of


@dataclass(frozen=True)
class Claims:
    """Hold what remains of a column's significant gains.

    Args:
        gains: Those that remain.
        improved: Whether the average relative improvement remains.
        lost: What the others are lost to, in words; empty if all remain.
        less_accurate: Whether plain fine-tuning of equal compute is significantly more accurate.
    """

    gains: tuple[Gain, ...]
    improved: bool
    lost: str
    less_accurate: bool


POST_HOC = "with post-hoc methods on both sides"


def remaining(
    comparison: Comparison, column: str, gains: Sequence[Gain], improved: Gain | None
) -> Claims:
    """Return what remains of the gains of a column.

    Args:
        comparison: All scores, with the comparison at equal compute.
        column: The column.
        gains: Its gains after correction.
        improved: Its average relative improvement after correction.
    """
    equal = comparison.equal.get(column)
    against = "" if equal is None else f"against `{equal.reference}`, of equal compute"
    reasons: list[str] = []

    def holds(after: Gain | None, at_equal: Gain | None) -> bool:
        failed = [
            reason
            for reason, gain, tested in (
                (POST_HOC, after, after is not None),
                (against, at_equal, equal is not None),
            )
            if tested and (gain is None or gain.decided <= 0)
        ]
        reasons.extend(failed)
        return not failed

    def remains(gain: Gain) -> bool:
        after = next(
            (each for each in reversed(given_gains(comparison, column)) if each.view is gain.view),
            None,
        )
        return holds(after, _at(equal, after or gain))

    kept = tuple(gain for gain in gains if gain.decided > 0 and remains(gain))
    whole = False
    if improved is not None and improved.decided > 0:
        after = improvement_of(comparison, column, AFTER)
        at_equal = None if equal is None else improvement_of(equal, column, AFTER if after else SUMMARY)
        whole = holds(after, at_equal)
    task = [_at(equal, gain) for gain in gains if gain.row.key.perspective == "task"]
    less_accurate = any(gain is not None and gain.decided < 0 for gain in task)
    if less_accurate:
        reasons.append(against)
    return Claims(kept, whole, listed(list(dict.fromkeys(reasons))), less_accurate)


def _at(equal: Comparison | None, gain: Gain) -> Gain | None:
    """Return the same gain over plain fine-tuning of equal compute."""
    rows = [] if equal is None else [row for row in equal.rows if row.key == gain.row.key]
    return None if equal is None or not rows else gain_of(equal, rows[0], gain.column)
