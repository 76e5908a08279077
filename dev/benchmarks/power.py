"""Simulated error rate and power of rules that compare the methods of a study.

Run ``python -m dev.benchmarks.power``. Studies with several columns (methods) and seeds are
simulated many times. In the first half two columns are equal, so every significant difference is
false. In the second half the true difference is 3.5 standard errors (for accuracies: one logit).
Several rules are compared; `temper.functional.effects` is one of them. docs/evidence.md has the
table.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import stats

from dev.benchmarks.record import write
from temper.functional.effects import LEVEL, combined
from temper.functional.resampling import FloatArray

SEEDS = (2, 3, 5, 10)
SIZE = 3.5
"""True difference in the studies that measure power, in true standard errors."""


@dataclass(frozen=True)
class Shape:
    """Distribution of a study's scores; the standard deviation of an ordinary column is 1.

    Args:
        name: Description.
        columns: Number of columns, m >= 2.
        correlation: Correlation of two columns' scores at the same seed.
        noisy: Standard deviation of the second compared column.
        others: Standard deviation of the third column.
        rows: Fraction of a column's variance over seeds that is due to the finite number of rows.
        luck: Variance from the sample of rows that all seeds share, over the variance of the seeds.
        unequal: Standard deviation, over studies, of the logarithm of the two columns' ratio of
            standard deviations.
        failed: Fraction of runs whose score is 8 standard deviations lower.
    """

    name: str
    columns: int = 2
    correlation: float = 0.0
    noisy: float = 1.0
    others: float = 1.0
    rows: float = 0.0
    luck: float = 0.0
    unequal: float = 0.0
    failed: float = 0.0


SHAPES = (
    Shape("2 columns"),
    Shape("7 columns", columns=7),
    Shape("correlated 0.3", correlation=0.3),
    Shape("correlated 0.7", correlation=0.7),
    Shape("like kept results", correlation=0.2, unequal=0.5),
    Shape("one 3 x as noisy", noisy=3.0),
    Shape("one 3 x as noisy, correlated 0.2", noisy=3.0, correlation=0.2),
    Shape("one 10 x as noisy", noisy=10.0),
    Shape("7 columns, one of the two 3 x as noisy", columns=7, noisy=3.0),
    Shape("7 columns, another one collapsed", columns=7, others=8.0),
    Shape("a run in ten fails", failed=0.1),
    Shape("rows 0.3 of the variance", rows=0.3),
    Shape("rows 0.7 of the variance", rows=0.7),
    Shape("rows 0.3, one 3 x as noisy", rows=0.3, noisy=3.0),
    Shape("rows 0.3, luck with rows 0.5", rows=0.3, luck=0.5),
    Shape("rows 0.7, luck with rows 5", rows=0.7, luck=5.0),
)


@dataclass(frozen=True)
class Studies:
    """Simulated studies of one shape.

    Args:
        scores: Scores by study, seed and column, [K, n, m]; the first two columns are compared.
        known: Each column's variance over seeds that is due to the rows, [K, 2].
        luck: Variance of the difference from rows that a column's seeds share, [K].
    """

    scores: FloatArray
    known: FloatArray
    luck: FloatArray


def drawn(shape: Shape, seeds: int, *, size: float, studies: int, seed: int) -> Studies:
    """Draw studies in which the second column is truly better.

    Args:
        shape: Distribution of the scores.
        seeds: Runs of each column.
        size: True difference in standard errors.
        studies: Number of studies.
        seed: Seed of the draws.
    """
    draws = np.random.default_rng(seed)
    spread = np.ones((studies, 1, shape.columns))
    spread[..., 1] = shape.noisy * np.exp(draws.normal(0.0, shape.unequal, (studies, 1)))
    spread[..., 2:3] = shape.others
    both = draws.normal(size=(studies, seeds, 1)) * shape.correlation**0.5
    own = draws.normal(size=(studies, seeds, shape.columns)) * (1 - shape.correlation) ** 0.5
    scores = (both + own) * spread
    scores -= 8.0 * (draws.random(scores.shape) < shape.failed)
    variances = spread[:, 0, :2] ** 2
    of_seeds = variances.sum(axis=1) / seeds
    luck = shape.luck * of_seeds
    # The effect of rows on all seeds is in every score, but not in the spread over seeds.
    scores += draws.normal(size=(studies, 1, shape.columns)) * (luck[:, None, None] / 2) ** 0.5
    scores[..., 1] += size * (luck + of_seeds)[:, None] ** 0.5
    return Studies(scores, shape.rows * variances, luck)


def of_rows(
    rows: int, seeds: int, *, size: float, studies: int, seed: int, taste: float
) -> Studies:
    """Draw studies of two columns whose score is accuracy, row by row.

    A row's logit is the sum of the row's difficulty, an effect of method and row, an effect of the
    seed, and noise. The variances over rows are estimated from the drawn rows, as in a real study.

    Args:
        rows: Number of scored rows.
        seeds: Runs of each column.
        size: Mean logit that the second column adds; with 0 both are equal.
        studies: Number of studies.
        seed: Seed of the draws.
        taste: Standard deviation of the effect of method and row.
    """
    draws = np.random.default_rng(seed)
    scores, known, luck = [], [], []
    for _ in range(studies):
        hard = draws.normal(3.0, 3.0, rows) + draws.normal(0.0, taste, (2, 1, rows))
        hard[1] += size
        runs = (2, seeds, rows)
        logits = hard + draws.normal(0.0, 0.3, (2, seeds, 1)) + draws.normal(0.0, 1.0, runs)
        right = (logits > 0).astype(np.float64)
        scores.append(right.mean(axis=2).T)
        known.append(right.var(axis=1, ddof=1).mean(axis=1) / rows)
        means = right.mean(axis=1)
        luck.append((means[1] - means[0]).var(ddof=1) / rows - sum(known[-1]) / seeds)
    return Studies(np.array(scores), np.array(known), np.array(luck))


def rules(studies: Studies) -> dict[str, tuple[FloatArray, FloatArray, FloatArray]]:
    """Apply every rule to the studies.

    Returns:
        Rule -> mean differences, their variances, and degrees of freedom, [K] each.
    """
    scores = studies.scores
    n, m = scores.shape[1:]
    difference = scores[..., 1] - scores[..., 0]
    mean = difference.mean(axis=1)
    of_seeds = scores.var(axis=1, ddof=1)
    centered = scores - scores.mean(axis=1, keepdims=True) - scores.mean(axis=2, keepdims=True)
    centered += scores.mean(axis=(1, 2), keepdims=True)
    residual = (centered**2).sum(axis=(1, 2)) / ((m - 1) * (n - 1))
    every = np.ones(len(mean))
    pair = of_seeds[:, :2]
    squares = np.maximum((pair**2).sum(axis=1), np.finfo(np.float64).tiny)
    welch = np.maximum(pair.sum(axis=1) ** 2 / squares, 1.0) * (n - 1)
    # The variance of the difference over rows includes the noise of each run.
    rows = studies.luck + studies.known.sum(axis=-1) / n
    return {
        "paired t": (mean, difference.var(axis=1, ddof=1) / n, every * (n - 1)),
        "two-way": (mean, 2 * residual / n, every * (m - 1) * (n - 1)),
        "Welch": (mean, pair.sum(axis=1) / n, welch),
        "ours, seeds alone": (mean, *combined(pair, np.zeros(2), 0.0, n)),
        "ours, with rows": (mean, *combined(pair, studies.known, rows, n)),
    }


def fractions(studies: Studies) -> dict[str, float]:
    """Return for each rule the fraction of studies with a significant difference."""
    result = {}
    for rule, (mean, variance, freedom) in rules(studies).items():
        # Scores that are equal at every seed have no interval, so they are not significant.
        varies = variance > 1e-12
        error = np.where(varies, variance, 1.0) ** 0.5
        p = 2 * stats.t.sf(abs(mean) / error, freedom)
        result[rule] = float((varies & (p < LEVEL)).mean())
    return result


def cases(studies: int) -> Iterator[dict[str, Any]]:
    """Simulate every shape with every number of seeds.

    Args:
        studies: Studies of each kind.

    Yields:
        Shape, seeds and rule with the fractions of false positives and of detected differences.
    """
    for number, shape in enumerate(SHAPES):
        for seeds in SEEDS:
            both = [
                fractions(
                    drawn(shape, seeds, size=size, studies=studies, seed=1000 * seeds + number)
                )
                for size in (0.0, SIZE)
            ]
            yield from _lines(shape.name, seeds, *both, studies)
    for rows, taste in ((100, 0.0), (100, 0.5), (1000, 0.0), (1000, 0.5), (2000, 0.5), (2000, 2.0)):
        name = f"accuracy on {rows} rows"
        if taste:
            name += f", methods differ {'much ' if taste > 1 else ''}by row"
        for seeds in SEEDS[:3]:
            both = [
                fractions(of_rows(rows, seeds, size=size, studies=studies, seed=seeds, taste=taste))
                for size in (0.0, 1.0)
            ]
            yield from _lines(name, seeds, *both, studies)


def _lines(
    name: str, seeds: int, false: dict[str, float], seen: dict[str, float], studies: int
) -> Iterator[dict[str, Any]]:
    for rule, fraction in false.items():
        yield {
            "shape": name,
            "seeds": seeds,
            "rule": rule,
            "false": fraction,
            "error": (fraction * (1 - fraction) / studies) ** 0.5,
            "seen": seen[rule],
        }


def main() -> None:
    """Print the table and write dev/benchmarks/results/power.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=10_000)
    options = parser.parse_args()
    console = Console(width=140)
    result = list(cases(options.studies))
    names = list(dict.fromkeys(one["rule"] for one in result))
    title = (
        "False positives, % (nominal: 5; Monte Carlo error "
        f"{100 * (0.05 * 0.95 / options.studies) ** 0.5:.1f}) / power, %"
    )
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in ("study", "seeds", *names):
        justify: Literal["left", "right"] = "left" if heading == "study" else "right"
        table.add_column(heading, justify=justify, no_wrap=True)
    lines: dict[tuple[str, int], list[str]] = {}
    for one in result:
        text = f"{100 * one['false']:.1f} / {100 * one['seen']:.0f}"
        lines.setdefault((one["shape"], one["seeds"]), []).append(text)
    for (shape, seeds), texts in lines.items():
        table.add_row(shape, str(seeds), *texts)
    console.print(table)
    console.print(f"Written: {write('power', {'studies': options.studies, 'shares': result})}")


if __name__ == "__main__":
    main()
