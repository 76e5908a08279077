"""Gains of methods (columns) over the reference method, and their significance.

A gain is the removed fraction of the reference's error, ``(s - s_reference) / (s_perfect -
s_reference)``. So gains of all scores are comparable, and positive ones are better (RoAST, arXiv
2312.04032, Section 5.1).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from temper.display.cells import Comparison, Difference, Row, TrainingCost
from temper.display.folders import Source, is_plain
from temper.display.views import View
from temper.display.wording import listed, title, within
from temper.functional.effects import LEVEL
from temper.functional.intervals import holm
from temper.functional.scores import SCORES
from temper.report.derived import AFTER, ALL_IN, SUMMARY, view_of, views
from temper.report.view import error_of, leading


@dataclass(frozen=True)
class Rating:
    """The score of the method ``column``; ``row`` has the scores of all methods."""

    row: Row
    column: str

    @property
    def view(self) -> View:
        return view_of(self.row.key.perspective)


@dataclass(frozen=True)
class Gain(Rating):
    """Gain of a method on one score, in percent of the reference's error.

    Args:
        fraction: Removed error in percent of the reference's error; positive is better.
        low, high: 95% interval; None if there is none.
        decided: 1 if significantly better, -1 if significantly worse, else 0. See also
            `corrected_gains`.
    """

    fraction: float
    low: float | None
    high: float | None
    decided: int

    @property
    def given(self) -> str:
        """The post-hoc method that was applied to both methods; empty if none."""
        how = self.row.key.condition
        return self.view.condition(how) if how == self.view.without_training else ""

    @property
    def difference(self) -> Difference:
        result = self.row.cells[self.column].difference
        assert result is not None
        return result

    @property
    def natural(self) -> str:
        """The difference in the score's unit, with its interval."""
        value, interval = self.row.difference_text(self.column)
        return f"{_with_unit(self.row, value)} {interval}".rstrip()

    @property
    def detail(self) -> str:
        """Tooltip: score, difference, fraction and interval."""
        ends = "" if self.low is None else f" [{self.low:+.0f}, {self.high:+.0f}]"
        fraction = f"{self.fraction:+.0f}%{ends} of the error removed".replace("-", "\u2212")
        return f"{self.row.heading()}: {self.natural}; {fraction}; {self.said}"

    @property
    def weak(self) -> str:
        """A remark if the gain is significant, but not after correction; else empty."""
        alone = not self.decided and self.difference.verdict in ("better", "worse")
        return ", not significant after correction for all comparisons" if alone else ""

    @property
    def said(self) -> str:
        return f"{self.difference.said}{self.weak}"

    def sentence(self, reference: str) -> str:
        """Return the gain as a sentence; ``reference`` is the reference's name."""
        if self.decided:
            return f"`{self.column}` {self.clause(reference)}."
        outlook = self.row.outlook(self.column)
        message = f"{self.said}{f'; {outlook}' if outlook else ''}"
        return f"{self.view.title}: `{self.column}` {self.natural}, {message}."

    def at(self, reach: float) -> float:
        """Return the position on a scale from -reach to +reach, in percent of its width."""
        return _place(self.fraction, reach)

    def cut(self, reach: float) -> str:
        """Return ``under`` or ``over`` if the gain is outside the scale of `at`; else empty."""
        return "under" if self.fraction < -reach else "over" if self.fraction > reach else ""

    def ends(self, reach: float) -> tuple[float, float]:
        """Return start and width of the interval on the scale of `at`."""
        low, high = (_place(end or 0.0, reach) for end in (self.low, self.high))
        return low, round(high - low, 2)

    def clause(self, reference: str) -> str:
        """Return the predicate of `sentence`, for example ``is 40% better calibrated (...)``."""
        ours, theirs = self.row.cells[self.column].mean, self.row.cells[reference].mean
        value, interval = self.row.difference_text(self.column)
        return self.view.gain.format(
            better="better" if self.fraction > 0 else "worse",
            score=within(title(self.row.key.name)),
            ours=self.row.unit.with_sign(self.row.unit.text(ours)),
            compared=f"`{reference}`: {self.row.unit.with_sign(self.row.unit.text(theirs))}, "
            f"{_with_unit(self.row, value)}{f', 95% CI {interval}' if interval else ''}",
            title=self.view.title_in_text,
        )


def unit_of(row: Row) -> str:
    """Return the unit of a score's differences: ``points`` for scores in percent."""
    return "points" if row.unit.margin(1.0) is not None else row.unit.sign


def _place(fraction: float, reach: float) -> float:
    return round(50.0 + 50.0 * max(-1.0, min(1.0, fraction / reach)), 2)


def _with_unit(row: Row, difference: str) -> str:
    """Return a difference with its unit: ``+1.2 points``, ``+15.5%``."""
    name = unit_of(row)
    return f"{difference}{name}" if name == "%" else f"{difference} {name}".rstrip()


def gain_of(comparison: Comparison, row: Row, column: str) -> Gain | None:
    """Return the gain of a method on a score; None if it is undefined."""
    assert comparison.reference is not None
    difference = row.cells[column].difference
    # The average relative improvement is already such a fraction, in percent.
    is_fraction = row.key.perspective in (SUMMARY.name, AFTER.name, ALL_IN.name)
    error = 100.0 if is_fraction else error_of(row, comparison.reference)
    facts, start = SCORES.get(row.key.name), row.cells[comparison.reference].mean
    if error is None and facts is not None and start == facts.perfect:
        # A perfect reference has no error to remove; losses are measured on the full scale.
        error = 1.0 if row.higher_is_better else -1.0
    if error is None or difference is None or difference.mean is None:
        return None
    ends = [100 * end / error for end in (difference.low, difference.high) if end is not None]
    decided = {"better": 1, "worse": -1}.get(difference.verdict, 0)
    low, high = (min(ends), max(ends)) if len(ends) == 2 else (None, None)
    return Gain(row, column, 100 * difference.mean / error, low, high, decided)


_Rating = TypeVar("_Rating", bound=Rating)


def judged_rows(comparison: Comparison) -> Iterator[list[Row]]:
    """Yield the primary scores of each perspective that enters the recommendation."""
    return (leading(comparison, view.name) for view in views().values() if view.judged)


def representative(items: Sequence[_Rating]) -> Sequence[_Rating]:
    """Return the item that represents a perspective: the last unperturbed one, else the last one.

    The last perturbed one has the strongest perturbation. Without items there is none.
    """
    clean = [item for item in items if item.row.key.condition == "clean"]
    return (clean or items)[-1:]


def gains_of(comparison: Comparison, column: str) -> tuple[Gain, ...]:
    """Return a method's gain on each perspective: on the `representative` primary score."""
    return tuple(
        gain for gains in _by_perspective(comparison, column) for gain in representative(gains)
    )


def post_hoc_gains(comparison: Comparison, column: str) -> list[Gain]:
    """Return a method's gains if post-hoc methods are applied to it and to the reference."""
    result = _by_perspective(comparison, column)
    return [gain for gains in result for gain in gains if gain.given]


def improvement_of(comparison: Comparison, column: str, view: View = SUMMARY) -> Gain | None:
    """Return a method's gain in the average relative improvement; None if undefined."""
    rows = [row for row in comparison.of(view.name) if not row.key.set]
    return gain_of(comparison, rows[0], column) if rows else None


def _by_perspective(comparison: Comparison, column: str) -> Iterator[list[Gain]]:
    for rows in judged_rows(comparison):
        yield [gain for row in rows if (gain := gain_of(comparison, row, column)) is not None]


def corrected_gains(
    gains: Mapping[str, Sequence[Gain]], improved: Mapping[str, Gain | None]
) -> tuple[dict[str, tuple[Gain, ...]], dict[str, Gain | None], int]:
    """Set ``decided`` to 0 for gains that are not significant after Holm's correction.

    ``gains`` maps a method to its gains on perspectives, ``improved`` to that in the average
    relative improvement. Return both corrected, and the number of tests.
    """
    every = [gain for of_column in gains.values() for gain in of_column]
    every += [gain for gain in improved.values() if gain is not None]
    tested = [gain for gain in every if gain.difference.p is not None]
    corrected = holm([gain.difference.p or 0.0 for gain in tested])
    kept = {
        (gain.column, gain.row.key) for gain, p in zip(tested, corrected, strict=True) if p <= LEVEL
    }

    def judged(gain: Gain) -> Gain:
        return gain if (gain.column, gain.row.key) in kept else replace(gain, decided=0)

    return (
        {name: tuple(map(judged, of_column)) for name, of_column in gains.items()},
        {name: None if gain is None else judged(gain) for name, gain in improved.items()},
        len(tested),
    )


POST_HOC = "with post-hoc methods on both sides"


@dataclass(frozen=True)
class Claims:
    """Gains of a method that stay significant in all further tests.

    Further tests compare with post-hoc methods on both sides, and with equal compute.

    Args:
        gains: The gains on perspectives.
        improved: Whether that in the average relative improvement stays significant.
        tested: Names of the further tests; empty if there were none.
        lost: Names of the tests that gains did not pass; empty if all did.
        losses: Significant losses, also with post-hoc methods on both sides.
    """

    gains: tuple[Gain, ...] = ()
    improved: bool = False
    tested: str = ""
    lost: str = ""
    losses: tuple[Gain, ...] = ()


@dataclass(frozen=True)
class _Claim:
    """A gain, and further tests of it: name -> gain; None if it cannot be computed."""

    gain: Gain
    further: Mapping[str, Gain | None]

    @property
    def least_significant(self) -> tuple[float, str]:
        """Largest p value of the gain and its further tests, and the name of that test."""
        tests = [(_p(gain), how) for how, gain in {"": self.gain, **self.further}.items()]
        return max(tests, key=lambda test: test[0])

    @property
    def loses(self) -> bool:
        """Whether the method is significantly worse, also with post-hoc methods on both sides."""
        after = self.further.get(POST_HOC)
        return self.gain.decided < 0 and (after is None or after.decided < 0)


def _p(gain: Gain | None) -> float:
    """Return the p value of a gain; 1 if it is undefined or not positive."""
    p = None if gain is None else gain.difference.p
    return 1.0 if gain is None or p is None or gain.fraction <= 0 else p


def remaining(
    comparison: Comparison,
    gains: Mapping[str, Sequence[Gain]],
    improved: Mapping[str, Gain | None],
) -> dict[str, Claims]:
    """Return method -> `Claims`, given the results of `corrected_gains`."""
    claims = {
        name: [_claim(comparison, gain) for gain in (*of_column, improved[name]) if gain]
        for name, of_column in gains.items()
    }
    every = [claim for of_column in claims.values() for claim in of_column]
    corrected = holm([claim.least_significant[0] for claim in every])
    kept = {id(claim) for claim, p in zip(every, corrected, strict=True) if p <= LEVEL}
    result = {}
    for name, of_column in claims.items():
        significant = [claim for claim in of_column if claim.gain.decided > 0]
        left = [claim.gain for claim in significant if id(claim) in kept]
        lost = [claim.least_significant[1] for claim in significant if id(claim) not in kept]
        result[name] = Claims(
            tuple(gain for gain in left if gain is not improved[name]),
            any(gain is improved[name] for gain in left),
            _words(how for claim in of_column for how in claim.further),
            _words(lost),
            tuple(claim.gain for claim in of_column if claim.loses),
        )
    return result


def _words(tests: Iterable[str]) -> str:
    named = list(dict.fromkeys(filter(None, tests)))
    return listed(named) if named else ""


def _claim(comparison: Comparison, gain: Gain) -> _Claim:
    column, equal = gain.column, comparison.equal.get(gain.column)
    if gain.view is SUMMARY:
        after = improvement_of(comparison, column, AFTER)
    else:
        given = [item for item in post_hoc_gains(comparison, column) if item.view is gain.view]
        after = given[-1] if given else None
    further: dict[str, Gain | None] = {} if after is None else {POST_HOC: after}
    if equal is not None:
        at_equal = at_equal_compute(comparison, after or gain)
        further[f"against `{equal.reference}`, of equal compute"] = at_equal
    return _Claim(gain, further)


def at_equal_compute(comparison: Comparison, gain: Gain) -> Gain | None:
    """Return the gain over plain fine-tuning of equal compute; None if the study has none."""
    equal = comparison.equal.get(gain.column)
    rows = [row for row in equal.rows if row.key == gain.row.key] if equal else []
    return gain_of(equal, rows[0], gain.column) if equal and rows else None


def equal_compute(source: Source, costs: Mapping[str, TrainingCost]) -> dict[str, str]:
    """Return method -> plain fine-tuning with at least as much compute (the cheapest one).

    Compute is rounded to multiples of the reference's (`temper.study.schedule`). Methods that need
    no more than the reference, or have no such counterpart, are left out. The result is empty if
    the reference is not plain fine-tuning.
    """
    plain = [column.name for column in source.columns if is_plain(column.method, column.settings)]
    base = costs[source.reference].passes if source.reference in plain else None
    if not base:
        return {}
    times = {
        name: math.floor(cost.passes / base + 0.5) for name, cost in costs.items() if cost.passes
    }
    result = {}
    for name, wanted in times.items():
        enough = [item for item in plain if times.get(item, 0) >= wanted]
        if name not in plain and wanted > 1 and enough:
            result[name] = min(enough, key=times.__getitem__)
    return result
