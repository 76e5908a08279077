"""Simulated coverage of intervals and rate of false positives, by the number of rows.

Run ``python -m dev.benchmarks.verdicts``. Two equally good methods are run with several seeds and
scored on the same rows, many times; every significant difference is then false. Rows differ in
difficulty, and runs differ from each other. In one world the difficulty of a row also depends on
the method, so a sample of rows can favor one. With several seeds only the variance over seeds is
used (`dev.benchmarks.power` adds the rows). `temper.functional.intervals.LEAST_ROWS` was chosen by
this table, which is in docs/evidence.md.
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
"""Fraction of the rarer class, or of anomalies."""


@dataclass(frozen=True)
class World:
    """Distribution of logits; the noise between runs has standard deviation 1.

    Args:
        name: Description.
        middle: Mean over rows of the logit of the correct class.
        spread: Standard deviation of this logit over rows.
        taste: Standard deviation of the effect of method and row.
        luck: Standard deviation of the effect of the seed.
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
    """Compute the coverage of intervals of a fraction, exactly from the binomial distribution."""
    for fraction in SHARES:
        for rows in ROWS:
            right = np.arange(rows + 1)
            weights = stats.binom.pmf(right, rows, fraction)
            ends = np.array([wilson(float(k), rows) for k in right])
            # A bootstrap resample of a fraction is binomial.
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
    """Return four scores of one run: accuracy, two scores of two classes, and a calibration error.

    Args:
        logits: Logit of the correct class, [n].
        labels: Class of each row, 0 or 1, [n]; the anomalies of the AUROC are class 1.
    """
    right = np.asarray(logits > 0, dtype=np.float64)
    predictions = np.where(right == 1, labels, 1 - labels)
    confidence = 1 / (1 + np.exp(-np.abs(logits)))
    # The OOD score: high if class 1 is predicted correctly.
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
    """Simulate one comparison of two equally good methods.

    Args:
        world: Distribution of the logits.
        rows: Number of scored rows.
        seeds: Runs of each method; one is compared over rows, several over seeds.
        draws: Random generator.
        resamples: Number of bootstrap resamples.

    Returns:
        For each score whether the difference is significant; None without an interval.
    """
    labels = np.zeros(rows)
    labels[: max(1, round(RARE * rows))] = 1
    # One run of each compares two models, which are equal only if the seed's effect is equal.
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
        (result,) = difference_intervals(pairs, rows, resamples=resamples, seed=0)
        return (
            None
            if result.p is None or result.low is None or result.high is None
            else (not result.low <= 0 <= result.high)
        )
    whole = np.ones((1, rows))
    columns = [[float(one(whole)[0]) for one in column] for column in zip(*pairs, strict=True)]
    seen = effect(*columns)
    return None if seen is None else not seen.includes_zero


def false_verdicts(repetitions: int, *, report: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Simulate comparisons of equal methods.

    Args:
        repetitions: Comparisons of each kind.
        report: Receives progress.

    Yields:
        World, seeds, rows and score with the fraction of false positives.
    """
    for world in WORLDS:
        for seeds in SEEDS:
            for rows in ROWS:
                report(f"{world.name}, {seeds} seeds, {rows} rows")
                draws = np.random.default_rng([seeds, rows])
                times = repetitions if seeds > 1 else max(1, repetitions // 4)
                result = [
                    decided(world, rows, seeds, draws=draws, resamples=400) for _ in range(times)
                ]
                for score in result[0]:
                    false = sum(one[score] is True for one in result)
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
        verdicts = list(false_verdicts(options.repetitions, report=status.update))
    console.print(
        _table(
            "Coverage of a fraction's 95% interval, %",
            fractions,
            ("fraction",),
            ("bootstrap", "wilson"),
        )
    )
    console.print(_table("False positives, %", verdicts, ("world", "seeds", "score"), ("false",)))
    console.print(
        f"Written: {write('verdicts', {'coverage': fractions, 'false_verdicts': verdicts})}"
    )


def _table(
    title: str, result: list[dict[str, Any]], names: tuple[str, ...], values: tuple[str, ...]
) -> Table:
    """Lay out numbers with a line per situation and a column per number of rows."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in (*names, "" if len(values) > 1 else None, *map(str, ROWS)):
        if heading is not None:
            table.add_column(heading, justify="right" if heading.isdigit() else "left")
    lines: dict[tuple[str, ...], list[str]] = {}
    for one in result:
        for value in values:
            key = (*(str(one[name]) for name in names), *((value,) if len(values) > 1 else ()))
            lines.setdefault(key, []).append(f"{100 * one[value]:.1f}")
    for key, numbers in sorted(lines.items()):
        table.add_row(*key, *numbers)
    return table


if __name__ == "__main__":
    main()
