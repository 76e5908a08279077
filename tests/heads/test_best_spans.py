"""The most probable span, against all pairs of positions."""

from __future__ import annotations

import itertools

import pytest
import torch

from temper.heads import best_spans


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("longest", [1, 3, 30])
def test_the_best_span_is_the_likeliest_pair(seed: int, longest: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(4, 2, 7, generator=draws)
    masked = torch.rand(4, 7, generator=draws) < 0.4
    masked[:, 3] = False
    logits = logits.masked_fill(masked.unsqueeze(1), torch.finfo(logits.dtype).min)
    positions, chances = best_spans(logits, longest=longest)
    for row, position, chance in zip(logits, positions.tolist(), chances.tolist(), strict=True):
        first, last = row.double().softmax(-1)
        pairs = [
            (float(first[i] * last[j]), [i, j])
            for i, j in itertools.product(range(7), repeat=2)
            if i <= j < i + longest
        ]
        assert position == max(pairs)[1]
        assert chance == pytest.approx(max(pairs)[0])
