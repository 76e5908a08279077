"""The first screen of a report: the recommended method, its certainty, gains and cost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from temper.display.cells import Comparison, TrainingCost
from temper.display.views import View
from temper.display.wording import listed, plural, title, within
from temper.functional.effects import MOST_SEEDS, POWER, seeds_to_detect
from temper.report.derived import AFTER, views
from temper.report.gains import (
    POST_HOC,
    Claims,
    Gain,
    Rating,
    at_equal_compute,
    corrected_gains,
    gains_of,
    improvement_of,
    post_hoc_gains,
    remaining,
    unit_of,
)
from temper.report.levels import Level, levels

REACHES = (10, 25, 50, 100)
"""Possible limits of the scale of gains, in percent of the reference's error."""
LEARNED = 10.0
"""Percentage of the way from guessing to perfect, below which a task counts as not learned."""
MOST = 3
"""Maximum number of gains in the sentence of the recommendation."""
MORE_ROWS = (
    "Use a larger evaluation set, or hold out more rows, for example with --set "
    "data.dev_fraction=0.3."
)
MOST_POINTS, TITLE_WORDS = 3, 8
"""Maximum number of reasons below the title, and of words in the title."""
PLAIN = "plain"
"""Name of plain fine-tuning, both recipe and method."""


@dataclass(frozen=True)
class Headline:
    """The content of the first screen.

    Args:
        sentence: The recommendation with the main gains.
        certainty: Further sentences, on the certainty of the gains.
        column: The method shown in detail.
        recommended: The method to use; None if nothing can be compared.
        gains: Gains of ``column``, one per perspective.
        others: Gains of the other methods, and of ``column`` with post-hoc methods on both sides.
        cost: Cost of ``column`` relative to the reference.
        unmeasured: Titles of perspectives without scores.
        values: For a run without evaluation: (epoch, score, description).
        levels: For a single method: its scores between guessing and perfect.
        notices: Sentences on scored rows that a model was trained on; shown first.
    """

    sentence: str
    certainty: str = ""
    column: str | None = None
    recommended: str | None = None
    gains: tuple[Gain, ...] = ()
    others: tuple[Gain, ...] = ()
    cost: str = ""
    unmeasured: tuple[str, ...] = ()
    values: tuple[tuple[str, str, str], ...] = ()
    levels: tuple[Level, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return " ".join(filter(None, (*self.notices, self.sentence, self.certainty, self._costs)))

    @property
    def summary(self) -> list[str]:
        reasons = filter(None, (*self._reasons, self._costs))
        return [*self.notices, self.title, *(f"- {reason}" for reason in reasons)]

    @property
    def _costs(self) -> str:
        return f"`{self.column}` {self.cost}." if self.cost else ""

    @property
    def title(self) -> str:
        """The recommendation: the first part of the sentence."""
        return _parts(self.sentence)[0].rstrip(".")

    @property
    def points(self) -> list[str]:
        """The main reasons, one sentence each."""
        return self._reasons[:MOST_POINTS]

    @property
    def details(self) -> str:
        return " ".join(self._reasons[MOST_POINTS:])

    @property
    def _reasons(self) -> list[str]:
        return [*_parts(self.sentence)[1:], *_parts(self.certainty)]

    @property
    def lines(self) -> tuple[tuple[str, str, str], ...]:
        """Rows of the table on a terminal: (perspective, value or difference, explanation)."""
        # The sentence has a single value.
        values = self.values if len(self.values) > 1 else ()
        levels = [(level.view.title, level.text, level.row.heading()) for level in self.levels]
        gains = [(gain.view.title, gain.natural, gain.said) for gain in self.gains]
        return (*values, *levels, *gains)

    @property
    def reach(self) -> int:
        """Limit of the scale of gains, in percent of the reference's error."""
        ends = [end for gain in self.gains for end in (gain.fraction, gain.low, gain.high)]
        furthest = max((abs(end) for end in ends if end is not None), default=0.0)
        return next((step for step in REACHES if furthest <= step), REACHES[-1])

    @property
    def is_cut(self) -> bool:
        """Whether a gain is outside the scale."""
        return any(gain.cut(self.reach) for gain in (*self.gains, *self.others))

    def sentences(self, reference: str | None, views: Sequence[View]) -> list[str]:
        """Return a sentence per perspective in ``views``; the reference is None for one method."""
        if reference is None:
            levels = [level for level in self.levels if level.view in views]
            parts = [[f"{level.row.label}: {level.text}", level.standing] for level in levels]
            return [f"{', '.join(filter(None, part))}." for part in parts]
        return [gain.sentence(reference) for gain in self.gains if gain.view in views]

    def beside(self, gain: Gain) -> list[Gain]:
        return [
            other
            for other in self.others
            if other.row.key == gain.row.key or (other.given and other.view is gain.view)
        ]


def _parts(text: str) -> list[str]:
    """Split a text into sentences; split a first one that is too long for a title at its semicolon.

    Example:
        >>> _parts("`m` was trained on 90 rows in 9 steps; no row was scored. See below.")
        ['`m` was trained on 90 rows in 9 steps', 'No row was scored.', 'See below.']
        >>> _parts("Recommended: `uegr`. It is 40% better calibrated.")
        ['Recommended: `uegr`.', 'It is 40% better calibrated.']
    """
    first, *others = re.split(r"(?<=\.) (?=[A-Z`])", text) if text else [""]
    title, semicolon, rest = first.partition("; ")
    if semicolon and len(first.split()) > TITLE_WORDS:
        return [title, rest[0].upper() + rest[1:], *others]
    return [part for part in (first, *others) if part]


def headline(comparison: Comparison) -> Headline:
    """Choose the recommended method and summarize the comparison.

    A method is recommended in two cases:

    - it is better than the reference on a perspective and worse on none; losses that vanish with
      post-hoc methods on both sides do not count;
    - its average relative improvement is significant, it is better on a perspective, and its
      accuracy is not worse.

    "Better" and "worse" are significant after Holm's correction over all gains. So at most 5% of
    studies without any true difference recommend another method than the reference. Gains must
    also remain with post-hoc methods on both sides, and against plain fine-tuning of equal compute,
    which must not be more accurate (`temper.report.gains`). Without the latter in the study, the
    method is "not confirmed". Of several methods, the one with the largest average relative
    improvement is chosen, then the one with the most gains.
    """
    return replace(_verdict(comparison), notices=comparison.seen)


def _verdict(comparison: Comparison) -> Headline:
    scored = {
        row.key.perspective
        for row in comparison.rows
        if any(cell.mean is not None for cell in row.cells.values())
    }
    unmeasured = tuple(
        view.title_in_text for view in views().values() if view.judged and view.name not in scored
    )
    reference = comparison.reference
    others = [name for name in comparison.columns if name != reference]
    if reference is None:
        return _alone(comparison, unmeasured)
    if not others:
        return Headline(f"Only `{reference}` was run: nothing to compare it with.")
    if comparison.unfinished and not comparison.comparable:
        return Headline(comparison.unfinished)
    if not_learned := _not_learned(comparison):
        return Headline(not_learned, unmeasured=unmeasured)
    gains, improved, tests = corrected_gains(
        {name: gains_of(comparison, name) for name in others},
        {name: improvement_of(comparison, name) for name in others},
    )
    claims = remaining(comparison, gains, improved)
    better = [name for name in others if _is_better(comparison, gains[name], claims[name])]

    def worth(name: str) -> tuple[float, int]:
        gain = improved[name]
        return gain.fraction if gain else 0.0, sum(gain.decided for gain in gains[name])

    column = max(better or others, key=worth)
    if all(gain.low is None for gain in gains[column]):
        recommended = None
    else:
        recommended = column if better else reference
    undecided = [name for name in others if not any(gain.decided for gain in gains[name])]
    sentence, second = _sentences(
        comparison, gains[column], improved[column], claims[column], column, recommended, undecided
    )
    average = _average(
        improved[column],
        improvement_of(comparison, column, AFTER),
        alone=column == recommended and _losses_vanish(gains[column], claims[column]),
    )
    certainty = _certainty(comparison, gains[column], tests=tests)
    return Headline(
        sentence,
        " ".join(filter(None, (second, comparison.unfinished, average, certainty))),
        column,
        recommended,
        gains[column],
        (
            *(gain for name in others if name != column for gain in gains[name]),
            *post_hoc_gains(comparison, column),
        ),
        _cost(comparison, column),
        unmeasured,
    )


def _alone(comparison: Comparison, unmeasured: tuple[str, ...]) -> Headline:
    (column, *_) = comparison.columns
    result = levels(comparison, column)
    if not result:
        return Headline(f"`{column}` has no scores yet.", unmeasured=unmeasured)
    messages = [f"{level.text} {level.score}" for level in result if _is_task(level)]
    # The column of an evaluation without a run has no name.
    name = comparison.model if comparison.kind == "evaluation" else column
    sentence = f"`{name}` reaches {listed(messages)}" if messages else f"`{name}` was measured"
    certainty = (
        "The intervals do not include the variation over seeds. `temper compare` with the same "
        "model and data tests whether a robust method is better."
    )
    return Headline(f"{sentence}.", certainty, column, unmeasured=unmeasured, levels=result)


def _not_learned(comparison: Comparison) -> str:
    tasks = {
        level.column: level
        for column in comparison.columns
        for level in levels(comparison, column)
        if _is_task(level)
    }
    fractions = [level.fraction for level in tasks.values()]
    if not fractions or any(fraction is None or fraction >= LEARNED for fraction in fractions):
        return ""
    best = max(tasks.values(), key=lambda level: level.fraction or 0.0)
    return (
        f"No method learned the task: the best, `{best.column}`, reaches {best.text} "
        f"{best.score}, {best.standing}. Train longer, on more rows or at another learning rate."
    )


def _is_better(comparison: Comparison, gains: Sequence[Gain], claims: Claims) -> bool:
    if any(_may_lose(gain, comparison.margin) for gain, _ in _task(comparison, gains)):
        return False
    gained = any(gain.decided > 0 for gain in gains)
    return (claims.improved and gained) or (bool(claims.gains) and not claims.losses)


def _task(comparison: Comparison, gains: Sequence[Gain]) -> list[tuple[Gain, str]]:
    """Return (gain, baseline) on the task: over the reference, and over equal compute."""
    task_gains = [gain for gain in gains if _is_task(gain)]
    result = [(gain, str(comparison.reference)) for gain in task_gains]
    for gain in task_gains:
        if (at_equal := at_equal_compute(comparison, gain)) is not None:
            result.append((at_equal, str(comparison.equal[gain.column].reference)))
    return result


def _may_lose(gain: Gain, margin: float) -> bool:
    """Return whether a gain is a significant loss, or lower by more than the margin."""
    limit = gain.row.unit.margin(margin) or 0.0
    below = gain.fraction < 0 and abs(gain.difference.mean or 0.0) > limit
    return gain.decided < 0 or (gain.decided == 0 and below)


def _sentences(
    comparison: Comparison,
    gains: Sequence[Gain],
    improved: Gain | None,
    claims: Claims,
    column: str,
    recommended: str | None,
    undecided: Sequence[str],
) -> tuple[str, str]:
    reference = str(comparison.reference)
    if recommended is None:
        why = next((gain.difference.said for gain in gains), "no score in common")
        few = any(gain.difference.verdict == "too few rows" for gain in gains)
        return f"`{column}` cannot be compared with `{reference}`: {why}.", MORE_ROWS if few else ""
    task = [(gain, over) for gain, over in _task(comparison, gains) if gain.decided <= 0]
    lower = [(gain, over) for gain, over in task if _may_lose(gain, comparison.margin)]
    # Significant losses are in `against` below, except at equal compute.
    notes = [
        _accuracy(comparison, gain, over)
        for gain, over in lower + task
        if not gain.decided or over != reference
    ]
    note = f"; {notes[0]}" if notes else ""
    # The task's own scores come first, then the largest gains.
    ranked = sorted(gains, key=lambda gain: (not _is_task(gain), -abs(gain.fraction)))
    gained = [gain.clause(reference) for gain in ranked if gain.decided > 0][:MOST]
    against = [gain.clause(reference) for gain in ranked if gain.decided < 0][:MOST]
    if recommended == column:
        but = f", but {listed(against)}" if against else ""
        remain = [gain.clause(reference) for gain in ranked if gain in claims.gains][:MOST]
        gains_remain = "The gain remains" if len(remain or gained) == 1 else "The gains remain"
        second = f"{gains_remain} {claims.tested}." if claims.tested else ""
        if _losses_vanish(gains, claims):
            second += f" It is not significantly worse {POST_HOC} (`temper calibrate`)."
        first = "Recommended"
        if _untested(comparison, column):
            first = "Not confirmed"
            second += " Longer plain fine-tuning may do the same: --equal-compute tests it."
        return f"{first}: `{column}`. It {listed(remain or gained)}{but}{note}.", second
    kept = "Keep plain fine-tuning" if reference == PLAIN else f"Keep `{reference}`"
    if against:
        though = f", though it {listed(gained)}" if gained else ""
        return f"{kept}. `{column}` {listed(against)}{though}{note}.", ""
    if gained and claims.lost and not claims.gains:
        lost = f"{kept}. The gains of `{column}` do not remain {claims.lost}."
        return lost, f"Without this comparison, it {listed(gained)}{note}."
    if gained:
        return f"{kept}. `{column}` {listed(gained)}{note}, so it may be worse.", ""
    if improved is not None and improved.decided < 0:
        return f"{kept}. `{column}` is significantly worse on average over the perspectives.", ""
    return (
        f"{kept}. No difference of {listed([f'`{name}`' for name in undecided])} is significant "
        "after correction for all comparisons.",
        "",
    )


def _is_task(item: Rating) -> bool:
    return item.row.key.perspective == "task"


def _accuracy(comparison: Comparison, gain: Gain, over: str) -> str:
    name, verdict = within(title(gain.row.key.name)), gain.difference.verdict
    if verdict in ("equivalent", "non-inferior"):
        margin = f"margin: {comparison.margin:g} points"
        return f"its {name} is {verdict} to that of `{over}` ({margin})"
    if verdict == "worse":
        return f"its {name} is worse than that of `{over}` ({gain.natural})"
    whose = "" if over == comparison.reference else f" to `{over}`"
    return f"the difference in {name}{whose} is not significant ({gain.natural})"


def _losses_vanish(gains: Sequence[Gain], claims: Claims) -> bool:
    # Losses vanish if post-hoc methods are applied on both sides.
    return any(gain.decided < 0 for gain in gains) and not claims.losses


def _average(improved: Gain | None, after: Gain | None, *, alone: bool) -> str:
    """Return a sentence on the average relative improvement; empty without an interval.

    ``after`` is the improvement with post-hoc methods on both sides; ``alone``: mention only this
    one.
    """
    if improved is None or improved.low is None:
        return ""
    if alone and after is not None:
        return f"Average relative improvement {POST_HOC}: {after.natural}{after.weak}."
    also = f"; {POST_HOC}: {after.natural}" if after is not None else ""
    return f"Average relative improvement: {improved.natural}{improved.weak}{also}."


def _certainty(comparison: Comparison, gains: Sequence[Gain], *, tests: int) -> str:
    if all(gain.low is None for gain in gains):
        return ""
    seeds = min((len(gain.difference.seeds) for gain in gains), default=0)
    messages = []
    if any(gain.difference.examples is not None for gain in gains):
        messages.append(
            "The intervals are over the rows of one seed: they compare these two models, and three "
            "seeds (--seeds 0,1,2) would compare the methods."
        )
    elif any(gain.decided for gain in gains):
        holm = f", after Holm's correction over {plural(tests, 'comparison')}" if tests > 1 else ""
        messages.append(
            f"The differences named are significant (95% CI) over {plural(seeds, 'seed')}{holm}."
        )
    else:
        messages.append(f"Compared over {plural(seeds, 'seed')}.")
    open_ = [gain for gain in gains if not gain.decided and gain.difference.least is not None]
    if open_:
        sizes = listed(
            [
                f"{gain.view.title_in_text} {gain.row.unit.text(gain.difference.least)} "
                f"{unit_of(gain.row)}".rstrip()
                for gain in open_
            ]
        )
        messages.append(f"Minimum detectable difference ({100 * POWER:.0f}% power): {sizes}.")
    blind = [
        gain.view.title_in_text
        for gain in gains
        if gain.difference.standard_error and gain.difference.least is None
    ]
    if blind:
        messages.append(
            "These perspectives need more seeds (for example --seeds 0,1,2) for any difference to "
            f"be detected: {listed(blind)}."
        )
    messages += _detection(comparison, gains)
    return " ".join(messages)


def _detection(comparison: Comparison, gains: Sequence[Gain]) -> list[str]:
    """Return sentences on the seeds needed to detect ``comparison.detect``; empty if not set."""
    if comparison.detect is None:
        return []
    counts = []
    for gain in gains:
        difference, size = gain.difference, gain.row.unit.margin(comparison.detect)
        if size is None or difference.standard_error is None or difference.freedom is None:
            continue
        count = seeds_to_detect(
            size,
            seeds=len(difference.seeds),
            standard_error=difference.standard_error,
            freedom=difference.freedom,
            row_variance=difference.row_variance,
        )
        needed = f"more than {MOST_SEEDS}" if count is None else f"about {count}"
        counts.append(f"{gain.view.title_in_text} {needed}")
    points = f"{comparison.detect:g} point{'' if comparison.detect == 1 else 's'}"
    if not counts:
        return [f"This study does not allow an estimate of the seeds that detect {points}."]
    return [
        f"Seeds to detect a true difference of {points} ({100 * POWER:.0f}% power): "
        f"{listed(counts)}."
    ]


def _untested(comparison: Comparison, column: str) -> bool:
    # Without plain fine-tuning of equal compute, more compute alone could explain the gains.
    is_plain = column == PLAIN or column.startswith(f"{PLAIN}_x")
    tested = column in comparison.equal or is_plain
    ours, theirs = _costs(comparison, column)
    # Unrecorded compute may be larger.
    cheap = ours.passes and theirs.passes and ours.passes / theirs.passes < 1.5
    return comparison.reference == PLAIN and not tested and not cheap


def _costs(comparison: Comparison, column: str) -> list[TrainingCost]:
    columns = (column, str(comparison.reference))
    return [comparison.costs.get(name, TrainingCost()) for name in columns]


def _cost(comparison: Comparison, column: str) -> str:
    ours, theirs = _costs(comparison, column)
    messages = []
    if ours.passes and theirs.passes:
        times = ours.passes / theirs.passes
        messages.append(f"trains with {times:.1f}x the compute (forward passes)")
    if ours.memory and theirs.memory:
        messages.append(f"uses {ours.memory / theirs.memory:.1f}x the memory")
    if ours.parameters and ours.parameters == theirs.parameters:
        messages.append("costs the same at inference (same network size)")
    return listed(messages) if messages else ""
