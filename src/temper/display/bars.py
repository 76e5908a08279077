"""Progress bars on a terminal and in notebooks."""

from __future__ import annotations

import logging
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from temper.display.wording import title, unit, within
from temper.progress import Progress

EVERY: Final = 10.0
"""Seconds between progress lines if no bars are drawn."""
FORMAT: Final = "{bar:20} {n_fmt}/{total_fmt} {elapsed}<{remaining} {desc}"
BAR_COLUMNS: Final = 42
"""Width of a bar without its description, in characters."""


class Bars(Progress):
    """Show the progress of runs, steps and evaluations as bars on a terminal or in a notebook.

    Elsewhere, a line is logged every `EVERY` seconds. Each message is logged only once.

    Args:
        interactive: Whether to draw bars; None detects a terminal or a notebook.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, interactive: bool | None = None
    ) -> None:
        self._clock = clock
        self._notebook = "ipykernel" in sys.modules
        terminal = self._notebook or sys.stderr.isatty()
        self._interactive = terminal if interactive is None else interactive
        self._bars: dict[str, Any] = {}
        self._begun: dict[str, tuple[float, int]] = {}
        self._written = clock()
        self._loss, self._scores = list[str](), list[str]()
        self._messages: set[str] = set()
        self._run = ""

    def runs(self, number: int, total: int, name: str) -> None:
        self._loss, self._scores, self._run = [], [], name
        for kind in ("steps", "evaluation"):
            self._end(kind)
        self._draw("runs", number - 1, total, [f"run {number} of {total}: {name}"])
        if not self._interactive:
            self.write(f"run {number} of {total}: {name}")

    def steps(self, done: int, total: int, *, loss: float | None) -> None:
        shown = [] if loss is None else self._loss or [f"loss {loss:.4f}"]
        self._show("steps", done, total, "training", [*shown[:1], *self._scores, *shown[1:]])

    def logged(self, entry: Mapping[str, Any]) -> None:
        """Show the losses of an entry of ``metrics.jsonl``; write the scores of an epoch."""
        if "loss" in entry:
            self._loss = losses(entry)
        else:
            names = [name for name in entry if name not in ("step", "epoch")]
            self._scores = [_score(name, entry[name]) for name in names]
            # A terminal has no line for each run, only a bar that disappears.
            run = f"{self._run}, " if self._run and self._interactive else ""
            epoch, step = entry["epoch"], entry["step"]
            when = f"epoch {epoch:.3g}" if epoch >= 1 else f"step {step}"
            self.write(f"{run}{when}: {', '.join(self._scores)}")

    def evaluation(self, done: int, total: int, what: str) -> None:
        self._end("steps")
        self._show("evaluation", done, total, f"evaluating {what}", [])

    def info(self, text: str) -> None:
        if text not in self._messages:
            self._messages.add(text)
            self.report(text, warning=False)

    def notice(self, text: str) -> None:
        if text not in self._messages:
            self._messages.add(text)
            self.report(text, warning=True)

    def report(self, text: str, *, warning: bool) -> None:
        # A handler may write to the terminal, above the bars.
        with _tqdm().external_write_mode(file=sys.stderr):
            logging.getLogger("temper").log(logging.WARNING if warning else logging.INFO, text)

    def write(self, line: str) -> None:
        """Write a line above the bars; log it if there are no bars."""
        if self._interactive:
            _tqdm().write(line, file=sys.stderr)
        else:
            self.report(line, warning=False)

    def close(self) -> None:
        for kind in list(self._bars):
            self._end(kind)

    def _show(self, kind: str, done: int, total: int, what: str, parts: list[str]) -> None:
        now = self._clock()
        if kind not in self._begun or done < self._begun[kind][1]:
            self._begun[kind] = now, done
        self._draw(kind, done, total, parts or [what])
        if not self._interactive and now - self._written >= EVERY:
            self._written = now
            begun, first = self._begun[kind]
            left = ""
            if done > first:
                seconds = (now - begun) / (done - first) * (total - done)
                left = f", {_tqdm().format_interval(seconds)} left"
            self.write(f"{', '.join([what, *parts])}: {done} of {total}{left}")

    def _draw(self, kind: str, done: int, total: int, parts: list[str]) -> None:
        if not self._interactive:
            return
        text = fitting(parts, shutil.get_terminal_size().columns - BAR_COLUMNS)
        bar = self._bars.get(kind)
        if bar is None or bar.total != total or done < bar.n:
            self._end(kind)
            bar = self._bars[kind] = _tqdm()(
                desc=text,
                total=total,
                initial=done,
                leave=False,
                dynamic_ncols=True,
                file=sys.stderr,
                bar_format=None if self._notebook else FORMAT,
            )
        bar.set_description_str(text, refresh=False)
        bar.update(done - bar.n)

    def _end(self, kind: str) -> None:
        self._begun.pop(kind, None)
        if (bar := self._bars.pop(kind, None)) is not None:
            bar.close()


def fitting(parts: Sequence[str], width: int) -> str:
    """Join as many parts as fit into ``width`` characters; a first part that is too long is cut.

    Example:
        >>> fitting(["training", "loss 0.5012", "dev accuracy 0.8340"], 24)
        'training, loss 0.5012'
    """
    kept = list(parts)
    while len(kept) > 1 and len(", ".join(kept)) > width:
        kept.pop()
    return textwrap.shorten(", ".join(kept), max(width, 3), placeholder="...")


def losses(entry: Mapping[str, Any]) -> list[str]:
    """Return the loss in an entry of ``metrics.jsonl`` as text, and its terms if several.

    Example:
        >>> losses({"loss": 1.38, "loss/task": 0.7, "loss/adversarial": 0.68})
        ['loss 1.3800', 'task 0.7000', 'adversarial 0.6800']
    """
    names = ["loss", *(name for name in entry if name.startswith("loss/"))]
    # A single part is the whole loss.
    names = names[:1] if len(names) < 3 else names
    # A number that is not finite is null in the file.
    numbers = ["undefined" if entry[name] is None else f"{entry[name]:.4f}" for name in names]
    return [
        f"{name.removeprefix('loss/')} {shown}" for name, shown in zip(names, numbers, strict=True)
    ]


def _score(key: str, value: float | None) -> str:
    """Return a score as text; ``key`` is, for example, ``dev/accuracy``."""
    # A number that is not finite is null in the file.
    sets, _, name = key.rpartition("/")
    shown = unit(name, name)
    text = "undefined" if value is None else shown.with_sign(shown.text(value))
    return f"{sets.replace('/', ' ')} {within(title(name))} {text}".strip()


def _tqdm() -> Any:
    from tqdm.auto import tqdm

    return tqdm
