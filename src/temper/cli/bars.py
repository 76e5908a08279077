"""Progress bars on stderr: run i of n, steps, evaluation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import (
    Progress as Bars,
)

from temper.cli.screen import errors, notice
from temper.progress import Progress

EVERY = 10.0
"""Seconds between two lines where no bars are drawn."""


class ScreenProgress(Progress):
    """Draw a bar for runs, for steps and for an evaluation; lines now and then without a terminal.

    Args:
        bars: Rich's display, already started.
        clock: Seconds that pass; lines are printed by it.
    """

    def __init__(self, bars: Bars, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._bars, self._clock = bars, clock
        self._said = clock()
        self._tasks: dict[str, TaskID] = {}
        self._left = TimeLeft(clock)
        self._loss = self._scores = ""
        self._noticed: set[str] = set()

    def runs(self, number: int, total: int, name: str) -> None:
        """Show which run it is, and start its bars anew."""
        self._loss = self._scores = ""
        for kind in ("steps", "evaluation"):
            if kind in self._tasks:
                self._bars.remove_task(self._tasks.pop(kind))
        self._left.run(number, total)
        self._show("runs", number - 1, total, f"run {number} of {total}: {name}")
        self._print(f"run {number} of {total}: {name}")

    def steps(self, done: int, total: int, *, loss: float | None) -> None:
        """Show the steps of a run and its loss."""
        message = "" if loss is None else self._loss or f"loss {loss:.4f}"
        self._show(
            "steps", done, total, ", ".join(filter(None, ("training", message, self._scores)))
        )

    def logged(self, entry: Mapping[str, Any]) -> None:
        """Take up the loss with its parts, or the scores of an epoch, for the next step."""
        if "loss" in entry:
            self._loss = loss_in_words(entry)
        else:
            scores = ((name, entry[name]) for name in entry if name not in ("step", "epoch"))
            self._scores = ", ".join(
                f"{name.replace('/', ' ')} {score_in_words(value)}" for name, value in scores
            )
            self._print(f"epoch {entry['epoch']:.3g}: {self._scores}")

    def evaluation(self, done: int, total: int, what: str) -> None:
        """Show what is being measured."""
        self._show("evaluation", done, total, f"evaluating {what}")

    def info(self, text: str) -> None:
        """Print an informational message once above the bars."""
        if text not in self._noticed:
            self._noticed.add(text)
            self._bars.console.print(text, markup=False)

    def notice(self, text: str) -> None:
        """Print a notice once above the bars."""
        if text not in self._noticed:
            self._noticed.add(text)
            notice(text, console=self._bars.console)

    def _show(self, kind: str, done: int, total: int, description: str) -> None:
        if kind not in self._tasks:
            self._tasks[kind] = self._bars.add_task(description, total=total, left="")
        if kind == "runs":
            self._update(kind, done, total, description)
            return
        self._left.at(kind, done, total)
        left, all_left = in_words(self._left.of_part), in_words(self._left.of_all)
        self._update(kind, done, total, description, left=left)
        if (runs := self._tasks.get("runs")) is not None:
            of_all = self._bars.tasks[self._bars.task_ids.index(runs)].total or 1
            self._bars.update(runs, completed=self._left.share * of_all, left=all_left)
        now = self._clock()
        if now - self._said >= EVERY:
            self._said = now
            told = [f"{description}: {done} of {total}", left]
            told += [f"all runs: {all_left}"] if all_left else []
            self._print(", ".join(filter(None, told)))

    def _update(
        self, kind: str, done: int, total: int, description: str, *, left: str = ""
    ) -> None:
        self._bars.update(
            self._tasks[kind], completed=done, total=total, description=description, left=left
        )

    def _print(self, line: str) -> None:
        """Print a line where no bars are drawn."""
        if not self._bars.console.is_terminal:
            self._bars.console.print(line, markup=False)


def loss_in_words(entry: Mapping[str, Any]) -> str:
    """Say what the loss was, and of which parts.

    Args:
        entry: A line of ``metrics.jsonl`` with a loss.

    Example:
        >>> loss_in_words({"loss": 1.38, "loss/task": 0.7, "loss/adversarial": 0.68})
        'loss 1.3800 = task 0.7000 + adversarial 0.6800'
    """
    parts = [
        f"{name.removeprefix('loss/')} {score_in_words(value)}"
        for name, value in entry.items()
        if name.startswith("loss/")
    ]
    whole = f"loss {score_in_words(entry['loss'])}"
    return whole if len(parts) < 2 else f"{whole} = {' + '.join(parts)}"


def score_in_words(value: float | None) -> str:
    """Write a number of ``metrics.jsonl``, of which one that is not finite is null."""
    return "undefined" if value is None else f"{value:.4f}"


@contextmanager
def progress() -> Iterator[ScreenProgress]:
    """Draw bars on stderr for the length of a block.

    Where stderr is no terminal, no bar is drawn: a line is printed for each run and each epoch's
    score, and now and then one that says how far it is and how long it goes on.
    """
    console = errors()
    bars = Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}", markup=False),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    with bars:
        yield ScreenProgress(bars)


PARTS = ("steps", "evaluation")
"""Of a run, in their order."""


class TimeLeft:
    """Foresee the end of the present part, and of all runs.

    A part goes on at its mean pace. A run is its training and then its evaluation, which take the
    shares of the time that they took of the runs before; it is unknown until one was evaluated
    that, and the training counts as the whole. Runs that were kept took no time and do not count.

    Args:
        clock: Seconds that pass.

    Example:
        >>> now = [0.0]
        >>> left = TimeLeft(lambda: now[0])
        >>> left.at("steps", 0, 100)
        >>> now[0] = 10.0
        >>> left.at("steps", 25, 100)
        >>> left.of_part, in_words(left.of_part)
        (30.0, '0:30 left')
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._runs = self._number = 1
        self._kept = 0
        self._is_working = False
        self._took = dict.fromkeys(PARTS, 0.0)
        self._part = PARTS[0]
        self._begun: float | None = None
        self._first = self._done = 0
        self._total = 1
        self._start: float | None = None

    def run(self, number: int, total: int) -> None:
        """Hear that a run begins.

        Args:
            number: Which, from 1.
            total: Runs in all.
        """
        self._end_part()
        if number == 1:
            # What came before the first run, a search for a rate for instance, says nothing of it.
            self._start, self._took = None, dict.fromkeys(PARTS, 0.0)
        elif not self._is_working:
            self._kept += 1
        self._number, self._runs, self._is_working = number, total, False
        self._part, self._done = PARTS[0], 0

    def at(self, part: str, done: int, total: int) -> None:
        """Hear how far a part is.

        Args:
            part: ``steps`` or ``evaluation``.
            done: Steps or pieces done.
            total: Those of the part.
        """
        if self._start is None:
            self._start = self._clock()
        if self._begun is None or part != self._part or done < self._done:
            self._end_part()
            self._begun, self._first = self._clock(), done
        self._is_working = True
        self._part, self._done, self._total = part, done, max(total, 1)

    @property
    def share(self) -> float:
        """The share of all runs that is done, those that were kept among them."""
        trained, evaluated = (self._took[part] for part in PARTS)
        # The present run's evaluation is foreseen from those before.
        share = 1.0 if not evaluated else trained / (trained + evaluated)
        within = self._done / self._total
        inside = within * share if self._part == "steps" else share + within * (1 - share)
        return (self._number - 1 + (inside if self._is_working else 0.0)) / self._runs

    @property
    def of_part(self) -> float | None:
        """Seconds that the present part goes on; None before its first step."""
        made = self._done - self._first
        if self._begun is None or made < 1:
            return None
        return (self._clock() - self._begun) / made * (self._total - self._done)

    @property
    def of_all(self) -> float | None:
        """Seconds that all runs go on; None where there is one, or nothing to tell it by."""
        kept = self._kept / self._runs
        worked = self.share - kept
        if self._runs == 1 or self._start is None or worked <= 0:
            return None
        return (self._clock() - self._start) / worked * (1 - self.share)

    def _end_part(self) -> None:
        if self._begun is not None:
            self._took[self._part] += self._clock() - self._begun
        self._begun = None


def in_words(seconds: float | None) -> str:
    """Say how long that is; nothing where it is not known.

    Example:
        >>> in_words(7384.0), in_words(59.6), in_words(None)
        ('2:03:04 left', '1:00 left', '')
    """
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} left" if hours else f"{minutes}:{rest:02} left"
