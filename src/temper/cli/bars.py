"""Progress of a command: bars and messages on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from temper.cli.screen import errors, notice
from temper.display.bars import Bars


class ScreenProgress(Bars):
    """Bars whose messages are printed to stderr; ``clock`` returns seconds."""

    def __init__(self, console: Console, *, clock: Callable[[], float] | None = None) -> None:
        given = {} if clock is None else {"clock": clock}
        super().__init__(interactive=console.is_terminal, **given)
        self._console = console

    def report(self, text: str, *, warning: bool) -> None:
        from tqdm.auto import tqdm

        with tqdm.external_write_mode(file=self._console.file):
            if warning:
                notice(text, console=self._console)
            else:
                self._console.print(text, markup=False)


@contextmanager
def progress() -> Iterator[ScreenProgress]:
    """Show progress on stderr: bars on a terminal, else a line now and then."""
    shown = ScreenProgress(errors())
    try:
        yield shown
    finally:
        shown.close()
