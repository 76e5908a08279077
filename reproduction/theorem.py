"""Theorem 1 of UEGR as a check that runs: the mean of ``m g / p``, its variance, and the prose.

The theorem is about the selective update: an entry g moves with probability p and is divided by it.
``E[m g / p] = g`` and ``Var[m g / p] = g^2 (1 - p) / p``, so the mask adds variance wherever p < 1.
The text next to the theorem claims that the update has less. Each statement is one number with
the interval of its mean over draws. The draws are those of training (`temper.functional.masks`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from temper.errors import SettingError
from temper.functional.effects import effect
from temper.functional.masks import keep_probability, levels_of, quantize, thin
from temper.seeding import derive_seed, generator

PLACE = ("UEGR", "Theorem 1", "mean and variance of the selective update, by simulation")
TITLE = ", ".join(PLACE)
# The default, and the sentiment setting with its small probabilities.
SETTINGS = ((0.6, 1.0), (0.9, 10.0))
ENTRIES, DRAWS = 2048, 4000

Statement = Literal["mean", "variance", "less"]


def exact_ranks(values: Tensor) -> Tensor:
    """Rank magnitudes by sorting: the reference of the bucketed rank.

    Args:
        values: [n], non-zero entries only count; ties take their mid-rank.

    Returns:
        [n] fp64 in (0, 1); 0 for zeros.
    """
    size = values.abs().double()
    ordered = size[size > 0].sort().values
    if not len(ordered):
        return torch.zeros_like(size)
    low = torch.searchsorted(ordered, size, right=False)
    high = torch.searchsorted(ordered, size, right=True)
    return torch.where(size > 0, (low + high).double() / (2 * len(ordered)), 0.0)


@dataclass(frozen=True)
class Finding:
    """One statement and the number that tests it.

    Args:
        statement: ``mean``: E[m g / p] = g. ``variance``: the formula. ``less``: the prose.
        text: The statement, with its settings.
        expected: The number if the statement holds.
        mean: The number, over draws.
        low, high: Its 95% interval.
        holds: Whether the interval allows the statement.
    """

    statement: Statement
    text: str
    expected: str
    mean: float
    low: float
    high: float
    holds: bool

    @property
    def measured(self) -> str:
        """The number with its interval."""
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def check_theorem(
    *, entries: int = ENTRIES, draws: int = DRAWS, seed: int = 0, p_min: float = 1e-3
) -> list[Finding]:
    """Draw masks over a fixed heavy-tailed gradient and measure mean and variance.

    ``mean``: ``<g, m g / p> / <g, g>``, 1 if the mean is g. ``variance``: the squared distance of
    ``m g / p`` from g over the formula's sum, 1 if the formula holds. ``less``: for a gradient G =
    g + noise as mini-batches give it, the variance of ``m G / p`` less that of G, over that of G;
    below 0 if masking took variance away. Saliency is that of g, so the mask does not know the
    noise.

    Args:
        entries: Entries of the gradient, >= 2.
        draws: Masks, >= 3.
        seed: Seed of the gradient and of every draw.
        p_min: Smallest probability (1e-3, the default of the selective update).

    Returns:
        Three findings for each of `SETTINGS`.

    Raises:
        SettingError: There are too few entries or draws.

    Example:
        >>> [finding.holds for finding in check_theorem(entries=64, draws=500)[:3]]
        [True, True, False]

    References:
        UEGR (arXiv 2503.16550), Theorem 1 and Eq. 18.
    """
    if entries < 2 or draws < 3:
        raise SettingError(
            f"The check needs entries >= 2 and draws >= 3, got {entries} and {draws}."
        )
    gradient = _gradient(entries, seed)
    findings = []
    for alpha, beta in SETTINGS:
        probability = keep_probability(exact_ranks(gradient), alpha=alpha, beta=beta)
        q = quantize(probability, p_min=p_min)
        findings += _findings(
            gradient, q, draws=draws, seed=seed, named=f"alpha {alpha}, beta {beta}"
        )
    return findings


def _findings(gradient: Tensor, q: Tensor, *, draws: int, seed: int, named: str) -> list[Finding]:
    p = q.double() / levels_of(q)
    size = gradient.square().sum()
    formula = (gradient.square() * (1 - p) / p).sum()
    # Noise as large as the entry: one batch is that uncertain about a weight.
    deviation = gradient.abs()
    means, variances, added = [], [], []
    for draw in range(draws):
        key = (seed, "theorem", named, draw)
        thinned = thin(gradient, q, derive_seed(*key), scale=True)
        means.append(float((gradient * thinned).sum() / size))
        variances.append(float((thinned - gradient).square().sum() / formula))
        draws_of_noise = generator(derive_seed(*key, "noise"))
        noise = deviation * torch.randn(
            len(gradient), dtype=torch.float64, generator=draws_of_noise
        )
        batch = gradient + noise
        masked = thin(batch, q, derive_seed(*key, "batch"), scale=True)
        more = (masked - gradient).square().sum() - noise.square().sum()
        added.append(float(more / deviation.square().sum()))
    samples: dict[Statement, tuple[list[float], str]] = {
        "mean": (means, "the mean of m g / p is g"),
        "variance": (
            variances,
            "the variance of m g / p is g\u00b2 (1 \u2212 p) / p: measured over formula",
        ),
        "less": (
            added,
            "the masked update has less variance: added variance over the gradient's",
        ),
    }
    findings = []
    for statement, (values, text) in samples.items():
        t = effect(values)
        assert t is not None  # draws differ, so that there is an interval
        holds = t.high < 0 if statement == "less" else t.low <= 1 <= t.high
        expected = "below 0" if statement == "less" else "1"
        findings.append(
            Finding(statement, f"{text} ({named})", expected, t.mean, t.low, t.high, holds)
        )
    return findings


def _gradient(entries: int, seed: int) -> Tensor:
    """Draw a gradient whose entries span orders of magnitude, as those of a network do."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "theorem", "gradient"))
    sign = torch.randn(entries, dtype=torch.float64, generator=generator)
    return sign * torch.exp(torch.randn(entries, dtype=torch.float64, generator=generator))
