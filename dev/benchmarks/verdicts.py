"""How often intervals miss and verdicts are false, by the number of rows: a simulation.

Run ``python -m dev.benchmarks.verdicts``. Two methods that hold equally well are run over some
seeds and scored on the same rows, many times over; each verdict is then a false one. Rows differ in
how hard they are, runs differ from each other, and in one world the two methods also find different
rows hard, so that each has luck with some draws of rows; several seeds are judged by the seeds
alone (`dev.benchmarks.power` adds the rows). `temper.functional.intervals.LEAST_ROWS` is read off
this table; docs/evidence.md quotes it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import stats

from dev.benchmarks.record import write
from temper.functional.calibration import expected_calibration_error
from temper.functional.detectors import auroc
from temper.functional.effects import effect
from temper.functional.intervals import Statistic, difference_intervals
from temper.functional.proportions import Proportion, wilson
from temper.functional.resampling import FloatArray
from temper.functional.scores import macro_f1

ROWS = (10, 20, 34, 50, 100, 200, 500)
SHARES = (0.5, 0.8, 0.95, 0.99)
SEEDS = (1, 3, 5)
RARE = 0.1
"""Fraction of the rarer class, or of anomalies, of the scores that have two kinds of rows."""


@dataclass(frozen=True)
class World:
    """How rows and runs differ, on the scale of a logit whose noise from run to run is 1.

    Args:
        name: It in words.
        middle: Mean logit of the right answer over rows.
        spread: Standard deviation of it over rows.
        taste: Of what a method adds to a row at every seed.
        luck: Of what a seed adds to every row.
    """

    name: str
    middle: float
    spread: float
    taste: float
    luck: float = 0.3


WORLDS = (
    World("one method twice, accuracy 0.83", 3.0, 3.0, 0.0),
    World("one method twice, accuracy 0.94", 5.0, 3.0, 0.0),
    World("methods that differ by row, accuracy 0.82", 3.0, 3.0, 0.5),
    World("methods that differ by row, accuracy 0.94", 5.0, 3.0, 0.5),
)


def coverage_of_shares() -> Iterator[dict[str, Any]]:
    """Work out how often intervals of a fraction hold it, summed over the binomial distribution."""
    for fraction in SHARES:
        for rows in ROWS:
            right = np.arange(rows + 1)
            weights = stats.binom.pmf(right, rows, fraction)
            ends = np.array([wilson(float(k), rows) for k in right])
            # The bootstrap's resamples of a fraction are binomial themselves.
            drawn = stats.binom.ppf([[0.025], [0.975]], rows, right / rows).T / rows
            yield {
                "fraction": fraction,
                "rows": rows,
                "bootstrap": float(weights[_holds(drawn, fraction)].sum()),
                "wilson": float(weights[_holds(ends, fraction)].sum()),
            }


def _holds(ends: FloatArray, fraction: float) -> FloatArray:
    return (ends[:, 0] - 1e-9 <= fraction) & (fraction <= ends[:, 1] + 1e-9)


def statistics(logits: FloatArray, labels: FloatArray) -> dict[str, Statistic]:
    """Return four scores of one run: a fraction, two of two kinds of rows, one of confidences.

    Args:
        logits: Logit of the right answer, [n].
        labels: Class of each row, 0 or 1, [n]; the anomalies of the AUROC are class 1.
    """
    right = np.asarray(logits > 0, dtype=np.float64)
    predictions = np.where(right == 1, labels, 1 - labels)
    confidence = 1 / (1 + np.exp(-np.abs(logits)))
    # How anomalous a row looks: high where class 1 is answered rightly.
    anomalous = np.where(labels == 1, logits, -logits)
    return {
        "accuracy": Proportion(right),
        "macro_f1": lambda counts: macro_f1(labels, predictions, counts=counts),
        "auroc": lambda counts: auroc(labels, anomalous, counts=counts),
        "ece_10": lambda counts: expected_calibration_error(
            right, confidence, bins=10, counts=counts
        ),
    }


def decided(
    world: World, rows: int, seeds: int, *, draws: np.random.Generator, resamples: int
) -> dict[str, bool | None]:
    """Simulate one comparison of two methods that hold equally well.

    Args:
        world: How rows and runs differ.
        rows: Rows that are scored.
        seeds: Runs of each method; one is compared over the rows, more over the seeds.
        draws: Where numbers are drawn from.
        resamples: Resamples of a bootstrap.

    Returns:
        Of each score whether a difference was found, None where nothing could be said.
    """
    labels = np.zeros(rows)
    labels[: max(1, round(RARE * rows))] = 1
    # One run of each is a comparison of two models, which are equal where they are equally lucky.
    luck = world.luck if seeds > 1 else 0.0
    base = draws.normal(world.middle, world.spread, rows)
    methods = [base + draws.normal(0, world.taste, rows) for _ in range(2)]
    runs = [
        [
            statistics(method + draws.normal(0, luck) + draws.normal(0, 1, rows), labels)
            for method in methods
        ]
        for _ in range(seeds)
    ]
    return {
        name: _verdict([(a[name], b[name]) for a, b in runs], rows, resamples)
        for name in runs[0][0]
    }


def _verdict(pairs: list[tuple[Statistic, Statistic]], rows: int, resamples: int) -> bool | None:
    if len(pairs) == 1:
        (found,) = difference_intervals(pairs, rows, resamples=resamples, seed=0)
        return (
            None
            if found.p is None or found.low is None or found.high is None
            else (not found.low <= 0 <= found.high)
        )
    whole = np.ones((1, rows))
    columns = [[float(one(whole)[0]) for one in column] for column in zip(*pairs, strict=True)]
    seen = effect(*columns)
    return None if seen is None else not seen.inside_noise


def false_verdicts(repetitions: int, *, told: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Simulate comparisons of equal methods.

    Args:
        repetitions: Comparisons of each kind.
        told: Hears what is being simulated.

    Yields:
        By world, seeds, rows and score the fraction of comparisons with a false verdict.
    """
    for world in WORLDS:
        for seeds in SEEDS:
            for rows in ROWS:
                told(f"{world.name}, {seeds} seeds, {rows} rows")
                draws = np.random.default_rng([seeds, rows])
                times = repetitions if seeds > 1 else max(1, repetitions // 4)
                found = [
                    decided(world, rows, seeds, draws=draws, resamples=400) for _ in range(times)
                ]
                for score in found[0]:
                    false = sum(one[score] is True for one in found)
                    yield {
                        "world": world.name,
                        "seeds": seeds,
                        "rows": rows,
                        "score": score,
                        "false": false / times,
                        "comparisons": times,
                    }


def main() -> None:
    """Print the table and write dev/benchmarks/results/verdicts.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=1000)
    options = parser.parse_args()
    console, errors = Console(), Console(stderr=True)
    fractions = list(coverage_of_shares())
    with errors.status("") as status:
        verdicts = list(false_verdicts(options.repetitions, told=status.update))
    console.print(
        _table(
            "Coverage of a fraction's 95% interval, %",
            fractions,
            ("fraction",),
            ("bootstrap", "wilson"),
        )
    )
    console.print(_table("False verdicts, %", verdicts, ("world", "seeds", "score"), ("false",)))
    console.print(
        f"Written: {write('verdicts', {'coverage': fractions, 'false_verdicts': verdicts})}"
    )


def _table(
    title: str, found: list[dict[str, Any]], names: tuple[str, ...], values: tuple[str, ...]
) -> Table:
    """Lay numbers out with a line a situation and a column a number of rows."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in (*names, "" if len(values) > 1 else None, *map(str, ROWS)):
        if heading is not None:
            table.add_column(heading, justify="right" if heading.isdigit() else "left")
    lines: dict[tuple[str, ...], list[str]] = {}
    for one in found:
        for value in values:
            key = (*(str(one[name]) for name in names), *((value,) if len(values) > 1 else ()))
            lines.setdefault(key, []).append(f"{100 * one[value]:.1f}")
    for key, numbers in sorted(lines.items()):
        table.add_row(*key, *numbers)
    return table


if __name__ == "__main__":
    main()
