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
        "training: 2 of 9, 0:35 left",
        "training, loss 0.2500: 4 of 9, 0:25 left",
        "evaluating task on dev: 2 of 2, 0:00 left",
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
        "epoch 1: dev accuracy 0.7500, selection accuracy undefined\n"
        "training, loss 1.5000 = task 0.7000 + adversarial 0.8000, dev accuracy 0.7500, "
        "selection accuracy undefined: 1 of 9\n"
    )


def test_a_log_of_several_runs_says_how_long_the_run_and_all_of_them_go_on() -> None:
    text, now = io.StringIO(), [0.0]
    console = Console(file=text, width=200)
    shown = ScreenProgress(Bars(console=console, disable=True), clock=lambda: now[0])
    for number in (1, 2):
        shown.runs(number, 4, f"plain, seed {number}")
        for step in range(4):
            shown.steps(step, 3, loss=None)
            now[0] += 10.0 if step < 3 else 0.0
        for piece in range(3):
            shown.evaluation(piece, 2, "task on dev")
            now[0] += 5.0 if piece < 2 else 0.0
    said = text.getvalue().splitlines()
    # 30 s of training and 10 s of evaluation a run: 100 s are gone with the fifth step of all.
    assert said[0] == "run 1 of 4: plain, seed 1"
    assert "training: 1 of 3, 0:20 left, all runs: 1:50 left" in said
    assert said[-1] == "evaluating task on dev: 2 of 2, 0:00 left, all runs: 1:20 left"


def test_on_a_terminal_the_bar_of_the_runs_moves_with_the_steps() -> None:
    now = [0.0]
    bars = Bars(console=Console(file=io.StringIO(), force_terminal=True), disable=True)
    shown = ScreenProgress(bars, clock=lambda: now[0])
    shown.runs(2, 4, "uegr, seed 0")
    shown.steps(0, 10, loss=None)
    now[0] = 5.0
    shown.steps(5, 10, loss=None)
    runs, steps = bars.tasks
    assert (runs.completed, runs.total) == (1.5, 4)
    assert (steps.completed, steps.fields["left"]) == (5, "0:05 left")


def test_on_a_terminal_the_bars_say_it() -> None:
    text, now = io.StringIO(), [0.0]
    console = Console(file=text, force_terminal=True)
    shown = ScreenProgress(Bars(console=console, disable=True), clock=lambda: now[0])
    now[0] += 2 * EVERY
    shown.steps(1, 9, loss=None)
    assert text.getvalue() == ""
