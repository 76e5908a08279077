"""How long a command goes on, foreseen from what its parts have taken."""

from __future__ import annotations

from collections.abc import Callable

PARTS = ("steps", "evaluation")
"""Of a run, in their order."""


class TimeLeft:
    """Foresee the end of the present part, and of all runs.

    A part goes on at its mean pace. A run is its training and then its evaluation, which take the
    shares of the time that they took of the runs before; until one was evaluated nobody can know
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
