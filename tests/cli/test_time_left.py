"""How long a command goes on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.cli.bars import TimeLeft


class Work:
    """Runs of known length, told to a `TimeLeft` as a study tells them."""

    def __init__(self, runs: int) -> None:
        self.now, self.runs = 0.0, runs
        self.left = TimeLeft(lambda: self.now)

    def part(self, name: str, pieces: int, seconds: float) -> None:
        self.left.at(name, 0, pieces)
        for piece in range(1, pieces + 1):
            self.now += seconds
            self.left.at(name, piece, pieces)


PIECES, SECONDS = st.integers(1, 20), st.floats(0.1, 100.0)


@given(runs=st.integers(2, 6), steps=PIECES, of_step=SECONDS, pieces=PIECES, of_piece=SECONDS)
def test_runs_that_are_alike_are_foreseen_exactly_once_one_is_done(
    runs: int, steps: int, of_step: float, pieces: int, of_piece: float
) -> None:
    work, one = Work(runs), steps * of_step + pieces * of_piece
    for number in range(1, runs + 1):
        work.left.run(number, runs)
        work.part("steps", steps, of_step)
        if number > 1:
            gone = (number - 1) * one + steps * of_step
            assert work.left.of_all == pytest.approx(runs * one - gone)
        work.part("evaluation", pieces, of_piece)
        assert work.left.share == pytest.approx(number / runs)


@given(first=st.integers(0, 5), done=st.integers(1, 9), seconds=SECONDS)
def test_a_part_that_goes_on_from_a_checkpoint_counts_its_own_steps(
    first: int, done: int, seconds: float
) -> None:
    work = Work(1)
    work.left.at("steps", first, 20)
    assert work.left.of_part is None
    work.now += done * seconds
    work.left.at("steps", first + done, 20)
    assert work.left.of_part == pytest.approx((20 - first - done) * seconds)
    assert work.left.of_all is None


def test_runs_that_were_kept_promise_no_speed() -> None:
    work = Work(4)
    for number in (1, 2, 3):
        work.left.run(number, 4)
    work.part("steps", 2, 10.0)
    assert work.left.of_all == pytest.approx(20.0)
