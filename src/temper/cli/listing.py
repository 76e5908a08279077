"""``temper list``: methods, models, perspectives, tasks, suites and other names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from temper import methods
from temper.api.keywords import TABLES
from temper.cli import options
from temper.cli.screen import print_json, print_table, say
from temper.data.suites.suite import KINDS as KINDS_OF_SETS
from temper.data.suites.suite import read_suite, suite_names
from temper.data.tasks.registry import TASKS
from temper.errors import SettingError, tables_of, unknown
from temper.evaluation import perspectives
from temper.evaluation.settings import EvaluationSettings
from temper.methods import recipes
from temper.models import names as models


def show(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="What to list: methods, recipes, settings, models, perspectives, tasks, suites or "
            "trainer. Default: a table that describes these.",
            autocompletion=lambda incomplete: [
                kind for kind in KINDS if kind.startswith(incomplete)
            ],
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(
            help="After methods: a method, to list its settings and presets. After settings: a "
            "part of the names to list. Default: all.",
            autocompletion=options.complete_method,
        ),
    ] = None,
    imports: options.Imports = None,
    as_json: options.Json = False,
) -> None:
    """List methods, models, settings and other names that the options of commands accept."""
    if kind is None:
        print_table([{"temper list": kind, "shows": SHOWN[kind]} for kind in KINDS])
        return
    if kind not in KINDS:
        raise SettingError(unknown("kind of list", kind, KINDS))
    options.import_methods(imports)
    if kind == "methods" and name is not None:
        _show_method(name, as_json=as_json)
        return
    rows = KINDS[kind]()
    if kind == "settings":
        rows = [row for row in rows if (name or "") in row["setting"]]
        if not rows:
            raise SettingError(
                f"No setting has {name!r} in its name. Print all of them: temper list settings."
            )
    elif name is not None:
        raise SettingError(
            "Only `temper list methods` and `temper list settings` take a name, got "
            f"{name!r} after {kind}. Leave it out."
        )
    if as_json:
        print_json(rows)
        return
    for row in rows if kind == "settings" else ():
        row["meaning"] += f" [{row['takes']}]" if row["takes"] else ""
    print_table(rows, COLUMNS.get(kind))
    if kind in HINTS:
        say(HINTS[kind])


def _settings() -> list[dict[str, Any]]:
    from temper.methods.description import bounds
    from temper.models.classical.registry import ARCHITECTURES, ArchitectureSettings

    def rows_of(settings: type[BaseModel], prefix: str) -> Iterator[dict[str, Any]]:
        for name, field in settings.model_fields.items():
            inner = tables_of(field.annotation)
            default = None if field.is_required() else field.get_default(call_default_factory=True)
            yield {
                "setting": f"{prefix}.{name}",
                "default": "" if inner or default is None else default,
                "takes": bounds(field),
                "meaning": field.description or "",
            }
            for part in inner:
                yield from rows_of(part, f"{prefix}.{name}")

    sections = EvaluationSettings.sections()
    tables = TABLES | {f"evaluate.{name}": settings for name, settings in sections.items()}
    tables["architecture"] = ArchitectureSettings
    rows = [row for table, settings in tables.items() for row in rows_of(settings, table)]
    common = [f"architecture.{name}" for name in ArchitectureSettings.model_fields]
    of_one = (
        {**row, "meaning": f"If the name is {name}: {row['meaning']}"}
        for name, architecture in ARCHITECTURES.items()
        for row in rows_of(architecture, "architecture")
        if row["setting"] not in common
    )
    return [*rows, *of_one]


def _show_method(name: str, *, as_json: bool) -> None:
    from temper.methods import entry
    from temper.methods.description import flat, settings

    described, about = settings(name), entry(name)
    if as_json:
        named = {"name": name, "class": about.config.__name__}
        print_json({**named, "settings": described, "presets": about.config.PRESETS})
        return
    say(f"{name}: {about.summary} ({about.paper})")
    say(f"Cost: {about.cost} (plain fine-tuning: 3F). Memory: {about.memory or 'none'}.")
    if about.incompatible:
        say(f"Cannot be combined with: {', '.join(about.incompatible)}.")
    if described:
        print_table(
            described,
            ["setting", "default", "bounds", "meaning"],
            title=f"method.SETTING of {name}",
        )
    else:
        say(f"{name} has no settings.")
    rows = [
        {
            "preset": preset,
            "sets": ", ".join(f"{key}={value}" for key, value in flat(name, values).items()),
        }
        for preset, values in about.config.PRESETS.items()
    ]
    if rows:
        print_table(rows, title=f"\nmethod.preset of {name}")


def _methods() -> list[dict[str, Any]]:
    entries = {name: methods.entry(name) for name in methods.names()}
    return [
        {
            "name": name,
            "summary": about.summary,
            "passes": about.cost,
            "memory": about.memory,
            "conflicts": about.conflicts,
            "paper": about.paper,
        }
        for name, about in entries.items()
    ]


def _tasks() -> list[dict[str, Any]]:
    return [
        {
            "name": task.name,
            "hub": task.hub,
            "kind": task.kind,
            "metrics": list(task.metrics),
            "pair": task.pair,
            # A task without published rows is recognized by its source's name only.
            "published_rows": [f"{split} {rows:,}" for split, rows in task.rows.items()],
            "rows": dict(task.rows),
            "labels": dict(enumerate(task.labels or ())),
        }
        for task in TASKS.values()
    ]


def _suites() -> list[dict[str, Any]]:
    rows = []
    for name in suite_names():
        suite = read_suite(name)
        sets = {kind: ", ".join(getattr(suite, kind)) for kind in KINDS_OF_SETS}
        rows.append({"name": name, "summary": suite.summary, **sets})
    return rows


def _trainer() -> list[dict[str, Any]]:
    from temper.training.supported import KINDS as KINDS_OF_NAMES

    return [
        {"name": name, "support": item.verdict, "note": item.note}
        for kind in KINDS_OF_NAMES.values()
        for name, item in kind.items()
    ]


COLUMNS = {
    "methods": ("name", "summary", "passes"),
    "settings": ("setting", "default", "meaning"),
    "models": ("name", "source", "parameters", "learning_rate"),
    "perspectives": ("name", "summary", "by_default"),
    "tasks": ("name", "kind", "metrics", "published_rows"),
}
"""Columns that fit a terminal; --json has all of them."""
SHOWN = {
    "methods": "Training methods; with a NAME, the settings of this method",
    "recipes": "Methods with matching settings, and the evidence for them",
    "settings": "Settings for --set and TOML files; with a PATTERN, those with it in their name",
    "models": "Short names of models for --model",
    "perspectives": "Perspectives (groups of metrics) for --perspectives",
    "tasks": "Benchmark tasks for --task",
    "suites": "Collections of shifted, adversarial and OOD sets for --suite",
    "trainer": "Arguments and methods of Transformers' Trainer: which RobustTrainer supports",
}
HINTS = {
    "methods": "Passes: cost of a step in forward passes (F).\n"
    "Settings of a method: temper list methods NAME",
    "settings": "Set one by --set SETTING=VALUE. Settings of a method: temper list methods NAME",
}
KINDS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "methods": _methods,
    "settings": _settings,
    "recipes": recipes.listing,
    "models": models.listing,
    "perspectives": perspectives.listing,
    "tasks": _tasks,
    "suites": _suites,
    "trainer": _trainer,
}
