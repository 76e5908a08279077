"""What a step of each column costs over the reference's, from the runs' own records.

Runs come one after the other, so this is only as fair as the machine was steady: `benchmarks/`
measures the same ratio with interleaved steps. The ratio is taken seed by seed, because the runs of
one seed follow each other, and its median is reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median


def step_cost(
    seconds: Mapping[str, Mapping[int, float]], *, reference: str
) -> dict[str, dict[str, float]]:
    """Compare the columns' median step times.

    Args:
        seconds: Column to seed to the median seconds of a step.
        reference: Column that the others are divided by.

    Returns:
        Column to ``step_seconds`` (median over its seeds) and ``over_reference`` (median over the
        seeds that both have; left out where there is none).

    Example:
        >>> step_cost({"vanilla": {0: 1.0}, "uegr": {0: 2.5}}, reference="vanilla")["uegr"]
        {'step_seconds': 2.5, 'over_reference': 2.5}
    """
    base = seconds.get(reference, {})
    cost = {}
    for column, by_seed in seconds.items():
        if not by_seed:
            continue
        cost[column] = {"step_seconds": median(by_seed.values())}
        ratios = [by_seed[seed] / base[seed] for seed in by_seed if base.get(seed)]
        if ratios:
            cost[column]["over_reference"] = median(ratios)
    return cost
