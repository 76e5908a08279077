"""Output of the command line: results on stdout; progress, warnings and errors on stderr."""

from __future__ import annotations

import json
import logging
import os
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from temper.display.bars import Bars

if TYPE_CHECKING:
    from temper.report import Headline

SILENT = {
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "DATASETS_VERBOSITY": "error",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Warnings of gradient synchronization, once for each process.
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


# Control characters except for tab and newline (C0, DEL, C1), and marks that turn the direction.
_CONTROLS = [*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F)]
_SHOWN = dict.fromkeys([*_CONTROLS, *range(0x2066, 0x206A)], "\ufffd")


class Screen(Console):
    """A console that removes terminal control characters from labels, names and messages."""

    def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else segment.text.translate(_SHOWN)
            yield Segment(text, segment.style, segment.control)

    def print(self, *objects: Any, **how: Any) -> None:
        """Print; on a terminal, wrap text between words but never cut a long path."""
        # A file or a pipe gets whole lines.
        if self.is_terminal and len(objects) == 1 and isinstance(objects[0], str | Text):
            (text,) = objects
            if isinstance(text, str):
                text = Text.from_markup(text) if how.get("markup", True) else Text(text)
            objects, how["soft_wrap"] = (_wrapped(text, self.width),), True
        super().print(*objects, **how)


def _wrapped(text: Text, width: int) -> Text:
    """Return a text with line breaks between words; Rich cannot wrap without cutting long words."""
    wrap = partial(
        textwrap.wrap,
        width=width,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=False,
        replace_whitespace=False,
    )
    lines: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        ends = accumulate(map(len, wrap(line.plain, expand_tabs=False)))
        first, *others = line.divide([end for end in ends if end < len(line)])
        lines += [first, *(item[len(item) - len(item.plain.lstrip()) :] for item in others if item)]
    for line in lines:
        line.rstrip()
    return Text("\n").join(lines)


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).translate(_SHOWN)


def errors() -> Console:
    return Screen(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep other libraries' bars, logs and warnings off the screen; Temper's own logs stay.

    The variables must be set before those libraries are imported, so commands import them late.
    A variable that the user has set is not changed.
    """
    for name, value in SILENT.items():
        os.environ.setdefault(name, value)
    logger = logging.getLogger("temper")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Plain("%(message)s"))
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def fail(message: str) -> None:
    errors().print(f"[bold red]Error:[/] {escape(message)}")


def notice(message: str, *, console: Console | None = None) -> None:
    """Print a note to the user on stderr, above the bars if there are any."""
    (console or errors()).print(f"[yellow]Note:[/] {escape(message)}")


class ScreenProgress(Bars):
    """Bars whose messages are printed to stderr; ``clock`` returns seconds."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(interactive=console.is_terminal, clock=clock)
        self._console = console

    def report(self, text: str, *, warning: bool) -> None:
        from tqdm.auto import tqdm

        with tqdm.external_write_mode(file=self._console.file):
            if warning:
                notice(text, console=self._console)
            else:
                self._console.print(text, markup=False)


def progress() -> closing[ScreenProgress]:
    """Show progress on stderr: bars on a terminal, else a line now and then."""
    return closing(ScreenProgress(errors()))


def say(message: str, *, as_json: bool = False) -> None:
    """Print a line to stdout, or to stderr if stdout is reserved for JSON."""
    console = errors() if as_json else Screen(highlight=False, soft_wrap=True)
    console.print(escape(message))


def print_json(content: Any) -> None:
    text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False)
    # JSON does not escape DEL and C1 controls, which occur in strings only.
    escapes = {code: f"\\u{code:04x}" for code in _SHOWN if code > 126}
    sys.stdout.write(text.translate(escapes) + "\n")


def print_table(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str] | None = None,
    *,
    title: str | None = None,
) -> None:
    """Print rows as a table to stdout; long cells wrap at the width of a terminal, else at 200.

    ``columns`` are by default the keys of the first row.
    """
    columns = list(rows[0]) if columns is None else columns
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        # The first column is never wrapped.
        table.add_column(column.replace("_", " "), overflow="fold", no_wrap=index == 0)
    for row in rows:
        table.add_row(*(escape(_cell(row.get(column))) for column in columns))
    _wide().print(table)


def print_headline(shown: Headline) -> None:
    """Print the result to stdout: a line per perspective, then the recommendation as a list."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for line in shown.lines:
        table.add_row(*map(Text, line))
    console = _wide()
    console.print(table)
    for note in shown.summary:
        console.print(Text(note), soft_wrap=True)


def _wide() -> Console:
    """Return a console on stdout; a file or a pipe gets lines of 200 columns."""
    console = Screen(highlight=False)
    return console if console.is_terminal else Screen(highlight=False, width=200)


def _cell(value: Any) -> str:
    if value is None or value == {}:
        return ""
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    # As in TOML and --set.
    return str(value).lower() if isinstance(value, bool) else str(value)
