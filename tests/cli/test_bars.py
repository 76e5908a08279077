"""Progress: lines without a terminal, bars of fixed width on one."""

from __future__ import annotations

import io
import logging
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from temper.cli.screen import ScreenProgress
from temper.display.bars import EVERY, Bars, fitting


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def in_a_file() -> tuple[ScreenProgress, io.StringIO, list[float]]:
    text, now = io.StringIO(), [0.0]
    return ScreenProgress(Console(file=text, width=200), clock=lambda: now[0]), text, now


def test_without_a_terminal_lines_are_printed_now_and_then() -> None:
    shown, text, now = in_a_file()
    for step in range(1, 5):
        now[0] += EVERY / 2
        shown.steps(step, 9, loss=None if step < 4 else 0.25)
    shown.evaluation(0, 2, "task on dev")
    now[0] += EVERY
    shown.evaluation(1, 2, "task on dev")
    assert text.getvalue().splitlines() == [
        "training: 2 of 9, 00:35 left",
        "training, loss 0.2500: 4 of 9, 00:25 left",
        "evaluating task on dev: 1 of 2, 00:10 left",
    ]


def test_the_loss_its_parts_and_the_last_scores_are_shown() -> None:
    shown, text, now = in_a_file()
    shown.logged({"step": 1, "loss": 1.5, "loss/task": 0.7, "loss/adversarial": 0.8, "x/y": 1.0})
    shown.logged({"step": 1, "epoch": 1.0, "dev/accuracy": 0.75, "selection/accuracy": None})
    now[0] += EVERY
    shown.steps(1, 9, loss=1.5)
    assert text.getvalue() == (
        "epoch 1: dev accuracy 75.0%, selection accuracy undefined\n"
        "training, loss 1.5000, dev accuracy 75.0%, selection accuracy undefined, task 0.7000, "
        "adversarial 0.8000: 1 of 9\n"
    )


def test_a_run_begins_with_a_line_and_messages_are_printed_once() -> None:
    shown, text, _ = in_a_file()
    shown.runs(1, 4, "plain, seed 0")
    for _ in range(2):
        shown.notice("Rows were dropped.")
        shown.info("Loading minilm.")
    assert text.getvalue().splitlines() == [
        "run 1 of 4: plain, seed 0",
        "Note: Rows were dropped.",
        "Loading minilm.",
    ]


def test_on_a_terminal_the_scores_of_an_epoch_name_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    shown = Bars(clock=lambda: 0.0, interactive=True)
    shown.runs(1, 4, "uegr, seed 0")
    shown.logged({"step": 1, "epoch": 1.0, "dev/accuracy": 0.75})
    # A run with a maximum number of steps may end within an epoch.
    shown.logged({"step": 1, "epoch": 0.0667, "dev/accuracy": 0.5})
    shown.close()
    assert "uegr, seed 0, epoch 1: dev accuracy 75.0%\n" in terminal.getvalue()
    assert "uegr, seed 0, step 1: dev accuracy 50.0%\n" in terminal.getvalue()


def test_a_logged_notice_has_its_own_line_above_the_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    handler = logging.StreamHandler(terminal)
    logging.getLogger("temper").addHandler(handler)
    shown = Bars(clock=lambda: 0.0, interactive=True)
    shown.runs(1, 4, "plain, seed 0")
    shown.notice("Rows were dropped.")
    shown.close()
    logging.getLogger("temper").removeHandler(handler)
    assert "Rows were dropped." in terminal.getvalue().replace("\r", "\n").split("\n")


@pytest.mark.parametrize("columns", [80, 100])
def test_the_bar_has_a_fixed_width(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, now = Terminal(), [0.0]
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "24")
    shown = Bars(clock=lambda: now[0], interactive=True)
    shown.runs(2, 4, "uegr, seed 0")
    shown.logged({"step": 1, "loss": 1.5, "loss/task": 0.7, "loss/adversarial": 0.8})
    shown.steps(0, 300, loss=1.5)
    shown.logged({"step": 1, "epoch": 1.0, "dev/accuracy": 0.75, "selection/accuracy": 0.5})
    for bar in shown._bars.values():
        bar.refresh()
    shown.steps(0, 300, loss=1.5)
    shown._bars["steps"].refresh()
    written = terminal.getvalue().replace("\x1b[A", "\r").replace("\n", "\r").split("\r")
    lines = [line for line in written if "/300" in line or "/4 " in line]
    shown.close()
    assert lines
    assert {line.index(" ", 20) for line in lines if line.strip()} == {20}
    assert max(map(len, lines)) <= columns
    parts = ["loss 1.5000", "dev accuracy 75.0%", "selection accuracy 50.0%", "task 0.7000"]
    description = "loss" + lines[-1].rstrip().partition("loss")[2]
    assert description in {", ".join(parts[:count]) for count in range(2, len(parts) + 1)}
    assert "epoch 1: dev accuracy 75.0%" in terminal.getvalue()


def test_a_python_call_logs_messages_once(caplog: pytest.LogCaptureFixture) -> None:
    shown = Bars(interactive=False)
    with caplog.at_level(logging.INFO, "temper"):
        for _ in range(2):
            shown.info("Reading column text.")
            shown.notice("Rows were dropped.")
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "Reading column text."),
        ("WARNING", "Rows were dropped."),
    ]


@given(
    st.lists(st.from_regex(r"[a-z]{1,12}( [a-z0-9.]{1,8}){0,3}", fullmatch=True), min_size=1),
    st.integers(15, 120),
)
def test_parts_are_dropped_from_the_right_and_words_are_never_broken(
    parts: list[str], width: int
) -> None:
    text = fitting(parts, width)
    assert len(text) <= width
    whole = ", ".join(parts)
    assert whole.startswith(text.removesuffix("..."))
    if not text.endswith("..."):
        assert text in {", ".join(parts[:count]) for count in range(1, len(parts) + 1)}
    else:
        assert whole[len(text) - 3] in " ,"
