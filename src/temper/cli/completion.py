"""What the shell completes option values to; torch is not imported for it."""

from __future__ import annotations

from collections.abc import Iterable


def methods(incomplete: str) -> list[str]:
    """Complete a method's name, the last one of a composition."""
    return _last_of(incomplete, "+", _methods())


def method_list(incomplete: str) -> list[str]:
    """Complete the last of several methods with commas between."""
    return _last_of(incomplete, ",", _methods())


def models(incomplete: str) -> list[str]:
    """Complete a short name; where none fits, the shell completes a path."""
    from temper.models.names import SHORT_NAMES

    return _last_of(incomplete, None, SHORT_NAMES)


def perspectives(incomplete: str) -> list[str]:
    """Complete the last of several perspectives with commas between."""
    from temper.evaluation.perspectives.declared import GROUPS, declared

    return _last_of(incomplete, ",", (*declared(), *GROUPS))


def suites(incomplete: str) -> list[str]:
    """Complete a suite's name; where none fits, the shell completes a path."""
    from temper.data.suites.suite import suite_names

    return _last_of(incomplete, None, suite_names())


def tasks(incomplete: str) -> list[str]:
    """Complete a task's name."""
    from temper.data.tasks.registry import TASKS

    return _last_of(incomplete, None, TASKS)


def _methods() -> Iterable[str]:
    from temper.methods.declared import known_names

    return known_names()


def _last_of(incomplete: str, sign: str | None, names: Iterable[str]) -> list[str]:
    """Complete what stands behind the last sign, and keep what stands before it."""
    before, between, last = incomplete.rpartition(sign) if sign else ("", "", incomplete)
    space = last[: len(last) - len(last.lstrip())]
    return [
        f"{before}{between}{space}{name}"
        for name in sorted(names)
        if name.startswith(last.lstrip())
    ]
