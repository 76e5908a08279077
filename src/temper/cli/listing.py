"""``temper list``: methods, models, perspectives, tasks, suites and what else has names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from temper.cli import options
from temper.cli.screen import print_json, print_table, say
from temper.errors import DataError, SettingError, unknown


def show(
    kind: Annotated[
        str,
        typer.Argument(
            help="methods, models, perspectives, tasks, suites, reproductions or trainer."
        ),
    ],
    name: Annotated[
        str | None, typer.Argument(help="One method: its settings and presets.")
    ] = None,
    imports: options.Imports = None,
    markdown: Annotated[
        bool,
        typer.Option("--markdown", help="Print methods or trainer as their document holds them."),
    ] = False,
    write: Annotated[
        list[Path] | None,
        typer.Option(
            "--write",
            metavar="FILE.md",
            help="Write the methods' table into that document, between its markers.",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List methods, models, perspectives and more (see KIND); or a method's settings."""
    if kind not in KINDS:
        raise SettingError(unknown("kind of list", kind, KINDS))
    if (markdown and kind not in MARKDOWN) or (write and kind != "methods"):
        raise SettingError(
            "--markdown is for methods and trainer, --write for methods: temper list methods, got "
            f"{kind!r}."
        )
    if sum([as_json, markdown, bool(write)]) > 1:
        raise SettingError("Give one of --json, --markdown and --write.")
    options.import_methods(imports)
    if name is not None:
        if kind != "methods" or markdown or write:
            raise SettingError(
                f"Only methods are shown one by one (temper list methods NAME), got {name!r} "
                f"after {kind}. Leave it out."
            )
        _show_method(name, as_json=as_json)
        return
    if write:
        _write(write)
        return
    if markdown:
        sys.stdout.write(MARKDOWN[kind]())
        return
    rows = KINDS[kind]()
    if as_json:
        print_json(rows)
        return
    if kind == "methods":
        rows = _with_claims(rows)
    # A mapping inside a cell is for programs.
    print_table(rows, [name for name in rows[0] if not isinstance(rows[0][name], dict)])


def _methods_in_markdown() -> str:
    from temper.methods.table import markdown

    return markdown()


def _trainer_in_markdown() -> str:
    from temper.training.supported import markdown

    return markdown()


def _show_method(name: str, *, as_json: bool) -> None:
    """Print a method's settings and presets."""
    from temper.methods import entry
    from temper.methods.description import presets, settings

    found = settings(name)
    if as_json:
        about = {"name": name, "class": entry(name).config.__name__}
        print_json({**about, "settings": found, "presets": presets(name)})
        return
    if found:
        print_table(found, ["setting", "default", "meaning"], title=f"method.SETTING of {name}")
    else:
        say(f"{name} has no settings.", as_json=False)
    rows = [
        {"preset": preset, "sets": ", ".join(f"{key}={value}" for key, value in values.items())}
        for preset, values in presets(name).items()
    ]
    if rows:
        print_table(rows, ["preset", "sets"], title=f"\nmethod.preset of {name}")


def _write(documents: list[Path]) -> None:
    """Write the table into documents; all are read and made before one is written."""
    from temper.methods.table import rewrite
    from temper.training.checkpoint_folder import write_text

    made = {}
    for document in documents:
        try:
            text = document.read_text(encoding="utf-8")
        except OSError as error:
            raise DataError(f"{document} cannot be read: {error.strerror}.") from error
        try:
            made[document] = (text, rewrite(text, document.parent))
        except DataError as error:
            raise DataError(f"{document}: {error}") from error
    for document, (before, after) in made.items():
        if before != after:
            write_text(document, after)
        say(f"{'As it was' if before == after else 'Written'}: {document}", as_json=False)


def _methods() -> list[dict[str, Any]]:
    from temper import methods

    rows = []
    for name in methods.names():
        found = methods.entry(name)
        rows.append(
            {
                "name": name,
                "summary": found.summary,
                "passes": found.cost,
                "memory": found.memory,
                "slots": found.slots,
                "paper": found.paper,
            }
        )
    return rows


def _with_claims(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Write the slots as a person reads them."""
    from temper.methods.table import claims

    return [
        {
            (key if key != "slots" else "claims"): (value if key != "slots" else claims(value))
            for key, value in row.items()
        }
        for row in rows
    ]


def _models() -> list[dict[str, Any]]:
    from temper.models.classical import ARCHITECTURES
    from temper.models.hf import MODELS
    from temper.models.multi_task.configuration import LISTING, TYPE

    scratch = {name: each.listing() for name, each in ARCHITECTURES.items()}
    known = {**MODELS, **scratch, TYPE: LISTING}
    return [{"name": name, **row} for name, row in known.items()]


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
            # A task without is known by its source's name, and cannot be asked for by --task.
            "published_rows": [f"{split} {rows:,}" for split, rows in task.rows.items()],
            "rows": dict(task.rows),
            "labels": dict(enumerate(task.labels or ())),
        }
        for task in TASKS.values()
    ]


def _suites() -> list[dict[str, Any]]:
    from temper.data.suites import KINDS as KINDS_OF_SETS
    from temper.data.suites import read_suite, suite_names

    rows = []
    for name in suite_names():
        suite = read_suite(name)
        sets = {kind: ", ".join(getattr(suite, kind)) for kind in KINDS_OF_SETS}
        rows.append({"name": name, "summary": suite.summary, **sets})
    return rows


def _reproductions() -> list[dict[str, Any]]:
    from temper.study.reproduction.document import listing

    return [dict(row) for row in listing()]


def _trainer() -> list[dict[str, Any]]:
    from temper.training.supported import KINDS as KINDS_OF_NAMES

    return [
        {"name": name, "support": each.verdict, "note": each.note}
        for kind in KINDS_OF_NAMES.values()
        for name, each in kind.items()
    ]


MARKDOWN: dict[str, Callable[[], str]] = {
    "methods": _methods_in_markdown,
    "trainer": _trainer_in_markdown,
}
KINDS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "methods": _methods,
    "models": _models,
    "perspectives": _perspectives,
    "tasks": _tasks,
    "suites": _suites,
    "reproductions": _reproductions,
    "trainer": _trainer,
}
