"""One line of a reproduction's table: ours, the paper's, and the differences over the seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from temper.functional.effects import LEVEL, effect
from temper.functional.intervals import holm
from temper.functional.units import Unit

ABSENT = "not available"
NOT_LEARNED = "not learned"


def papers_unit(unit: Unit) -> Unit:
    """Return a unit with the second decimal that the papers print of percentages.

    Args:
        unit: How reports show the score, with one decimal.
    """
    return unit if unit.significant is not None or unit.decimals > 1 else replace(unit, decimals=2)


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its 95% t interval, from three seeds on.

    Args:
        mean: The mean.
        low, high: Its interval, None below three seeds.
        p: Two-sided p of a mean of 0, None with them.
        least: Smallest true mean that is detected with 80% power at the observed spread; None with
            them.
    """

    mean: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    least: float | None = None

    @classmethod
    def of(cls, values: Sequence[float], others: Sequence[float] | None = None) -> Interval | None:
        """Return the interval of some values, one per seed, or of their difference from others.

        None if there are no values.

        Example:
            >>> Interval.of([1.0, 3.0])
            Interval(mean=2.0, low=None, high=None, p=None, least=None)
        """
        if not values:
            return None
        test = effect(values, others)
        if test is None:
            other = others or [0.0] * len(values)
            return cls(fmean(a - b for a, b in zip(values, other, strict=True)))
        return cls(test.mean, test.low, test.high, test.p, test.least)

    @property
    def side(self) -> int | None:
        """1 or -1 if the interval is entirely above or below 0, 0 if it contains 0."""
        if self.low is None or self.high is None:
            return None
        return 1 if self.low > 0 else -1 if self.high < 0 else 0

    def less(self, amount: float) -> Interval:
        """Return the interval shifted down by a known amount, without its p."""
        if self.low is None or self.high is None:
            return Interval(self.mean - amount)
        return replace(
            self, mean=self.mean - amount, low=self.low - amount, high=self.high - amount, p=None
        )

    def text(self, unit: Unit) -> str:
        """Write mean and interval."""
        mean = unit.text(self.mean, signed=True)
        if self.low is None or self.high is None:
            return mean
        return f"{mean} [{unit.text(self.low, signed=True)}, {unit.text(self.high, signed=True)}]"


@dataclass(frozen=True)
class Line:
    """One score of one method in one case.

    Args:
        case: Name of the case, or the mean over some.
        score: Name of the score in the specification.
        label: The score in words.
        column: Name of the method.
        seeds: Our value of every seed.
        higher_is_better: Direction of the score.
        unit: How it is shown.
        printed: The paper's digits, None if they are not available.
        printed_gain: The printed gain over the reference, in our unit.
        to_paper: Ours less the paper's.
        to_reference: Ours less the reference's, seed by seed; None for the reference.
        to_printed_gain: Our gain over the reference less the paper's.
        corrected: Its p after Holm's correction over the methods of the same case and score; None
            without a p.
        learned: Whether plain training learns the case; otherwise differences mean nothing.
    """

    case: str
    score: str
    label: str
    column: str
    seeds: dict[int, float]
    higher_is_better: bool | None
    unit: Unit
    printed: str | None = None
    printed_gain: float | None = None
    to_paper: Interval | None = None
    to_reference: Interval | None = None
    to_printed_gain: Interval | None = None
    corrected: float | None = None
    learned: bool = True

    @property
    def ours(self) -> str:
        """Our mean, with the standard deviation from two seeds on."""
        values = list(self.seeds.values())
        if not values:
            return "not run"
        text = self.unit.text(fmean(values))
        return text if len(values) < 2 else f"{text} \u00b1 {self.unit.text(stdev(values))}"

    @property
    def side(self) -> int | None:
        """1 or -1 if the difference is significant, 0 if it is not; None if unknown.

        A difference is significant if its interval is entirely above or below 0 and p is small
        enough after the correction. It is unknown if the case is not learned.
        """
        alone = self._side_alone
        if alone is None or self.corrected is None or self.corrected <= LEVEL:
            return alone
        return 0

    @property
    def verdict(self) -> str:
        """The verdict of the difference from the reference."""
        if not self.learned:
            return NOT_LEARNED
        alone = self._side_alone
        if alone is None:
            return ""
        if alone == 0:
            return "not significant"
        words = self._word(above=alone > 0)
        return words if self.side else f"{words}, not after correction"

    @property
    def _side_alone(self) -> int | None:
        """The same before the correction, from the interval."""
        if self.to_reference is None or not self.learned:
            return None
        return self.to_reference.side

    def _word(self, *, above: bool) -> str:
        if self.higher_is_better is None:
            return "higher" if above else "lower"
        return "better" if above == self.higher_is_better else "worse"


def difference(values: Mapping[int, float], others: Mapping[int, float]) -> Interval | None:
    """Return the difference of two methods over the seeds that both have; None without such."""
    common = [seed for seed in values if seed in others]
    return Interval.of([values[seed] for seed in common], [others[seed] for seed in common])


def mean_over(parts: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Return the mean of several scores at every seed that all have."""
    common = set.intersection(*map(set, parts))
    return {seed: fmean(part[seed] for part in parts) for seed in sorted(common)}


def mean_lines(
    lines: Iterable[Line], cases: Sequence[str], *, reference: str, label: str, name: str
) -> list[Line]:
    """Return the mean over some cases of every method that has each of them once.

    Args:
        lines: The lines of one score; other cases are ignored.
        cases: The cases to average.
        reference: The method that the others are compared with.
        label: The score of the mean, in words.
        name: Text for the column ``case``.

    Returns:
        One line per method. Its difference is that of the means, seed by seed, and None if the
        reference lacks a case.
    """
    by_method: dict[str, list[Line]] = {}
    for line in lines:
        if line.case in cases:
            by_method.setdefault(line.column, []).append(line)
    averaged = {
        method: replace(_mean(of_method), case=name, label=label)
        for method, of_method in by_method.items()
        if sorted(line.case for line in of_method) == sorted(cases)
    }
    base = averaged[reference].seeds if reference in averaged else {}
    return [
        replace(line, to_reference=None if method == reference else difference(line.seeds, base))
        for method, line in averaged.items()
    ]


def group_difference(lines: Sequence[Line], others: Sequence[Line]) -> Line | None:
    """Return the mean of some methods, compared with the mean of others, over their common seeds.

    Args:
        lines: Lines of the methods, of one case and score.
        others: Lines of the others.

    Returns:
        A line whose method is the number of methods; None if either side is empty.
    """
    if not lines or not others:
        return None
    mean = _mean(lines)
    return replace(
        mean,
        column=f"{len(lines)} methods",
        to_reference=difference(mean.seeds, _mean(others).seeds),
    )


def _mean(lines: Sequence[Line]) -> Line:
    """Return the first line with the mean at every common seed, without differences."""
    return replace(
        lines[0],
        seeds=mean_over([line.seeds for line in lines]),
        printed=None,
        printed_gain=None,
        to_paper=None,
        to_reference=None,
        to_printed_gain=None,
        corrected=None,
    )


def corrected(lines: Iterable[Line]) -> list[Line]:
    """Correct the differences of each case and score for the number of methods, by Holm's rule.

    Args:
        lines: All lines of a table.

    Returns:
        The lines in their order, with the corrected p if the difference is over three or more
        seeds.

    References:
        Holm, "A simple sequentially rejective multiple test procedure", 1979.
    """
    made = list(lines)
    families: dict[tuple[str, str, str], dict[int, float]] = {}
    for index, line in enumerate(made):
        if line.learned and line.to_reference is not None and line.to_reference.p is not None:
            family = families.setdefault((line.case, line.score, line.label), {})
            family[index] = line.to_reference.p
    for family in families.values():
        for index, p in zip(family, holm(list(family.values())), strict=True):
            made[index] = replace(made[index], corrected=p)
    return made
