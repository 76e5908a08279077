"""Which gains remain with post-hoc methods on both sides and against equally costly fine-tuning.

A method is worth its cost only if neither a post-hoc method, which any trained model can be given,
nor longer plain fine-tuning gains as much. So a gain has up to three tests: over the reference,
over it with post-hoc methods on both sides, and over plain fine-tuning of equal compute. All must
be significant (an intersection-union test: its p-value is the largest of theirs), after Holm's
correction over all gains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from temper.display.cells import Comparison
from temper.display.wording import listed
from temper.functional.effects import LEVEL
from temper.functional.intervals import holm
from temper.report.derived import AFTER, SUMMARY
from temper.report.gains import Gain, gain_of, given_gains, improvement_of

POST_HOC = "with post-hoc methods on both sides"


@dataclass(frozen=True)
class Claims:
    """Hold what remains of a column's gains.

    Args:
        gains: Those that remain.
        improved: Whether the average relative improvement remains.
        tested: The further tests that there were, in words; empty if none.
        lost: The tests that significant gains were lost in, in words; empty if all remain.
    """

    gains: tuple[Gain, ...] = ()
    improved: bool = False
    tested: str = ""
    lost: str = ""


@dataclass(frozen=True)
class _Claim:
    """One gain and its further tests, in words; None for a gain that has no value there."""

    gain: Gain
    further: Mapping[str, Gain | None]

    @property
    def hardest(self) -> tuple[float, str]:
        """The largest p-value of the tests, and which test has it."""
        tests = [(_p(gain), how) for how, gain in {"": self.gain, **self.further}.items()]
        return max(tests, key=lambda test: test[0])


def _p(gain: Gain | None) -> float:
    p = None if gain is None else gain.difference.p
    return 1.0 if gain is None or p is None or gain.share <= 0 else p


def remaining(
    comparison: Comparison,
    gains: Mapping[str, Sequence[Gain]],
    improved: Mapping[str, Gain | None],
) -> dict[str, Claims]:
    """Return what remains of the gains of each column.

    Args:
        comparison: All scores, with the comparisons at equal compute.
        gains: Gains on the perspectives after correction, by column.
        improved: Gains in the average relative improvement after correction, by column.
    """
    claims = {
        name: [_claim(comparison, gain) for gain in (*of_column, improved[name]) if gain]
        for name, of_column in gains.items()
    }
    every = [claim for of_column in claims.values() for claim in of_column]
    corrected = holm([claim.hardest[0] for claim in every])
    kept = {id(claim) for claim, p in zip(every, corrected, strict=True) if p <= LEVEL}
    found = {}
    for name, of_column in claims.items():
        significant = [claim for claim in of_column if claim.gain.decided > 0]
        left = [claim.gain for claim in significant if id(claim) in kept]
        lost = [claim.hardest[1] for claim in significant if id(claim) not in kept]
        found[name] = Claims(
            tuple(gain for gain in left if gain is not improved[name]),
            any(gain is improved[name] for gain in left),
            _words(how for claim in of_column for how in claim.further),
            _words(lost),
        )
    return found


def _words(tests: Iterable[str]) -> str:
    named = list(dict.fromkeys(filter(None, tests)))
    return listed(named) if named else ""


def _claim(comparison: Comparison, gain: Gain) -> _Claim:
    """Return a gain with its further tests, as far as the comparison has them."""
    column, equal = gain.column, comparison.equal.get(gain.column)
    if gain.view is SUMMARY:
        after = improvement_of(comparison, column, AFTER)
    else:
        given = [each for each in given_gains(comparison, column) if each.view is gain.view]
        after = given[-1] if given else None
    further: dict[str, Gain | None] = {} if after is None else {POST_HOC: after}
    if equal is not None:
        at_equal = at_equal_compute(comparison, after or gain)
        further[f"against `{equal.reference}`, of equal compute"] = at_equal
    return _Claim(gain, further)


def at_equal_compute(comparison: Comparison, gain: Gain) -> Gain | None:
    """Return the same gain over plain fine-tuning of equal compute; None without such a column.

    Args:
        comparison: All scores, with the comparisons at equal compute.
        gain: A gain over the reference.
    """
    equal = comparison.equal.get(gain.column)
    rows = [row for row in equal.rows if row.key == gain.row.key] if equal else []
    return gain_of(equal, rows[0], gain.column) if equal and rows else None
