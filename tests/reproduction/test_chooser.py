"""The table of recommended methods follows its rule, and the page has the output of the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from reproduction.chooser import line, table
from reproduction.gains import paired_gain

PLAIN = dict(enumerate((80.0, 81.0, 79.0, 80.5, 79.5)))
COMPUTE = {"plain": 1.0, "plain_x2": 2.0, "uegr": 2.0}


def better_by(points: float, *, noise: float = 0.1) -> dict[int, float]:
    """Return the scores of plain fine-tuning with a gain that varies over the seeds."""
    return {seed: value + points + noise * (-1) ** seed for seed, value in PLAIN.items()}


def taken(**scores: dict[int, float]) -> str:
    return line("rows", "page", {"plain": PLAIN, **scores}, {}, COMPUTE)[1]


def test_the_page_is_what_the_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    page = Path("docs/methods/README.md").read_text(encoding="utf-8")
    assert table() in page, "run: python -m reproduction.chooser --write docs/methods/README.md"


def test_a_method_must_beat_plain_fine_tuning_of_equal_compute() -> None:
    assert taken(uegr=better_by(2, noise=0.2), plain_x2=better_by(0.1)) == "`uegr`"
    assert taken(uegr=better_by(2, noise=0.2), plain_x2=better_by(2.5)) == "`plain_x2`"
    assert taken(uegr=better_by(-2, noise=0.2), plain_x2=better_by(-1)) == "`plain`"
    assert taken(uegr=better_by(2, noise=20), plain_x2=better_by(0.01)) == "`plain`"


def test_the_interval_is_that_of_t_with_bonferronis_correction() -> None:
    own = {0: 1.0, 1: 2.0, 2: 3.0}
    # The differences have mean 2, standard error 1 / sqrt(3); 4.3027 and 6.2053 are the quantiles
    # of t with 2 degrees of freedom at 97.5% and at 98.75%.
    for comparisons, quantile in ((1, 4.3027), (2, 6.2053)):
        found = paired_gain(own, dict.fromkeys(own, 0.0), comparisons=comparisons)
        assert found is not None
        reach = quantile / 3**0.5
        assert (found.mean, found.low, found.high) == pytest.approx((2, 2 - reach, 2 + reach), 1e-4)
