"""Progress without a terminal: a line now and then."""

from __future__ import annotations

import io

from rich.console import Console
from rich.progress import Progress as Bars

from temper.cli.bars import EVERY, ScreenProgress


def test_without_a_terminal_lines_are_printed_now_and_then() -> None:
    text, now = io.StringIO(), [0.0]
    console = Console(file=text, width=200)
    shown = ScreenProgress(Bars(console=console, disable=True), clock=lambda: now[0])
    for step in range(1, 5):
        now[0] += EVERY / 2
        shown.steps(step, 9, loss=None if step < 4 else 0.25)
    shown.evaluation(1, 2, "task on dev")
    now[0] += EVERY
    shown.evaluation(2, 2, "task on dev")
    assert text.getvalue().splitlines() == [
        "training: 2 of 9",
        "training, loss 0.2500: 4 of 9",
        "evaluating task on dev: 2 of 2",
    ]


def test_the_parts_of_the_loss_and_the_last_scores_are_shown() -> None:
    text, now = io.StringIO(), [0.0]
    console = Console(file=text, width=200)
    shown = ScreenProgress(Bars(console=console, disable=True), clock=lambda: now[0])
    shown.logged({"step": 1, "loss": 1.5, "loss/task": 0.7, "loss/adversarial": 0.8, "x/y": 1.0})
    shown.logged({"step": 1, "epoch": 1.0, "dev/accuracy": 0.75, "selection/accuracy": None})
    now[0] += EVERY
    shown.steps(1, 9, loss=1.5)
    assert text.getvalue() == (
        "training, loss 1.5000 = task 0.7000 + adversarial 0.8000, dev accuracy 0.7500, "
        "selection accuracy undefined: 1 of 9\n"
    )


def test_on_a_terminal_the_bars_say_it() -> None:
    text, now = io.StringIO(), [0.0]
    console = Console(file=text, force_terminal=True)
    shown = ScreenProgress(Bars(console=console, disable=True), clock=lambda: now[0])
    now[0] += 2 * EVERY
    shown.steps(1, 9, loss=None)
    assert text.getvalue() == ""
