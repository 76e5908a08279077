"""Which gains remain with post-hoc methods on both sides and against equally costly fine-tuning.

A method is worth its cost only if neither a post-hoc method, which any trained model can be given,
nor longer plain fine-tuning gains as much. So a gain has up to three tests: over the reference,
over it with post-hoc methods on both sides, and over plain fine-tuning of equal compute. All must
be significant (an intersection-union test: its p-value is the largest of theirs), after Holm's
correction over all gains. A loss counts unless it vanishes with post-hoc methods on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from temper.display.cells import Comparison, TrainingCost
from temper.display.folders import Source, is_plain
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
        losses: Significant losses that remain.
    """

    gains: tuple[Gain, ...] = ()
    improved: bool = False
    tested: str = ""
    lost: str = ""
    losses: tuple[Gain, ...] = ()


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

    @property
    def loses(self) -> bool:
        """Whether it is a significant loss that remains with post-hoc methods on both sides."""
        after = self.further.get(POST_HOC)
        return self.gain.decided < 0 and (after is None or after.decided < 0)


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
            tuple(claim.gain for claim in of_column if claim.loses),
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


def equal_compute(source: Source, costs: Mapping[str, TrainingCost]) -> dict[str, str]:
    """Return the plain fine-tuning that has at least about the compute of each column.

    Args:
        source: The folder that was read.
        costs: What a training of each column took.

    Returns:
        Column to column; empty if the reference is not plain fine-tuning. Compute is counted in
        whole multiples of the reference's, as `temper.study.equal_compute` does; columns of the
        reference's compute are left out, and those that no plain fine-tuning costs as much as.
    """
    plain = [each.name for each in source.columns if is_plain(each.method, each.settings)]
    base = costs[source.reference].passes if source.reference in plain else None
    if not base:
        return {}
    times = {
        name: math.floor(cost.passes / base + 0.5) for name, cost in costs.items() if cost.passes
    }
    found = {}
    for name, wanted in times.items():
        enough = [each for each in plain if times.get(each, 0) >= wanted]
        if name not in plain and wanted > 1 and enough:
            found[name] = min(enough, key=times.__getitem__)
    return found
