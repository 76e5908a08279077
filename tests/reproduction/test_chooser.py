"""The table of recommended methods follows its rule, and the page has the output of the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from reproduction import chooser
from reproduction.chooser import line, table
from reproduction.gains import paired_gain

PLAIN = dict(enumerate((80.0, 81.0, 79.0, 80.5, 79.5)))
SIDES = ("plain", "attacked")
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
        result = paired_gain(own, dict.fromkeys(own, 0.0), comparisons=comparisons)
        assert result is not None
        reach = quantile / 3**0.5
        assert (result.mean, result.low, result.high) == pytest.approx(
            (2, 2 - reach, 2 + reach), 1e-4
        )


def test_a_task_of_base_size_is_listed_once_its_columns_have_three_seeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cell(column: str, seed: int, brier: float) -> dict[str, object]:
        calibrated = ["calibration", "dev", "temperature", "brier", brier + 0.001 * seed**2]
        task = ["task", "dev", "clean", "mcc", 0.5]
        scores = {"validation": [task], "reported": [task, calibrated]}
        return {"task": "cola", "column": column, "seed": seed, "rate": 4e-5, **scores}

    columns = {"plain": 0.40, "plain_2x": 0.39, "plain_3x": 0.41, "uegr": 0.30}
    cells = [cell(column, seed, brier) for column, brier in columns.items() for seed in range(3)]
    # The gain of a method varies a little: equal differences have no interval.
    cells[-1] = cell("uegr", 2, 0.3001)
    monkeypatch.setattr(chooser.base_size, "rates", lambda _: dict.fromkeys(SIDES, (4e-5, {})))
    for number, expected in ((len(cells) - 1, None), (len(cells), "`uegr`")):
        monkeypatch.setattr(chooser.base_size, "finished", lambda _, number=number: cells[:number])
        result = list(chooser.of_base_size())
        assert [row[1] for row in result] == ([] if expected is None else [expected])
