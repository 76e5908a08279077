"""``temper list``: the methods, models, perspectives and tasks that there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from temper.cli import options
from temper.cli.screen import print_json, print_table
from temper.errors import SettingError, unknown


def show(
    kind: Annotated[str, typer.Argument(help="methods, models, perspectives or tasks.")],
    as_json: options.Json = False,
) -> None:
    """List methods, models, perspectives or tasks."""
    if kind not in KINDS:
        raise SettingError(unknown("kind of list", kind, KINDS))
    rows = KINDS[kind]()
    if as_json:
        print_json(rows)
    else:
        # A mapping inside a cell is for programs.
        print_table(rows, [name for name in rows[0] if not isinstance(rows[0][name], dict)])


def _methods() -> list[dict[str, Any]]:
    from temper import methods

    return [
        {
            "name": name,
            "summary": methods.entry(name).summary,
            "passes": methods.entry(name).cost,
            "paper": methods.entry(name).paper,
        }
        for name in methods.names()
    ]


def _models() -> list[dict[str, Any]]:
    from temper.models.hf import MODELS

    return [{"name": name, **dict(row)} for name, row in MODELS.items()]


def _perspectives() -> list[dict[str, Any]]:
    from temper.evaluation.perspectives import listing

    rows: list[dict[str, Any]] = listing()
    return rows


def _tasks() -> list[dict[str, Any]]:
    from temper.data.tasks import TASKS

    return [
        {
            "name": task.name,
            "hub": task.hub,
            "kind": task.kind,
            "metrics": list(task.metrics),
            "pair": task.pair,
        }
        for task in TASKS.values()
    ]


KINDS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "methods": _methods,
    "models": _models,
    "perspectives": _perspectives,
    "tasks": _tasks,
}
