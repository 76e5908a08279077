"""Write the generated tables of the docs: ``python -m dev.tables``.

The table of methods (docs/methods/README.md), the summary and the settings in each method's card,
and the table of perspectives (docs/evaluation.md) are generated between markers. A card's column
"paper or its code" is written by hand and kept. The lists of features that `RobustTrainer` supports
(docs/trainer.md) are generated too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import fill
from typing import Any

from temper.display.wording import pipe_table
from temper.errors import DataError
from temper.evaluation.perspectives import perspectives
from temper.methods.description import bounds, flat, settings
from temper.methods.registry import entry, names
from temper.training.settings import TrainSettings
from temper.training.supported import KINDS, Verdict

ROOT = Path(__file__).resolve().parents[1]
CARDS = ROOT / "docs" / "methods"
METHODS, PERSPECTIVES = CARDS / "README.md", ROOT / "docs" / "evaluation.md"
TRAINER = ROOT / "docs" / "trainer.md"
RESULTS = ROOT / "reproduction" / "results"
MARKS = {
    "methods": ("<!-- methods -->", "<!-- /methods -->"),
    "summary": ("<!-- summary -->", "<!-- /summary -->"),
    "settings": ("<!-- settings -->", "<!-- /settings -->"),
    "perspectives": ("<!-- perspectives -->", "<!-- /perspectives -->"),
    "trainer": ("<!-- trainer -->", "<!-- /trainer -->"),
}
TRAINING = ("learning_rate", "epochs", "batch_size", "weight_decay", "warmup_ratio", "schedule")
"""Settings of training that a card lists if the paper has a value."""
SETTING, PUBLISHED = 0, 3
HEADINGS = ("setting", "default", "takes", "paper or its code", "presets", "meaning")
INTRODUCTIONS: dict[Verdict, str] = {
    "works": "**Works**, as Transformers documents it:",
    "refused": "**Refused** before training:",
    "no effect": "**No effect**, by nature:",
}
_CELL = re.compile(r"(?<!\\)\|")


def between(text: str, opening: str, closing: str, made: Callable[[str], str]) -> str:
    """Return a document with new content between two markers.

    Args:
        text: The document.
        opening: The first marker.
        closing: The last marker.
        made: Maps the old content to the new content.

    Raises:
        DataError: A marker is missing or repeated, or their order is wrong.
    """
    before, first, rest = text.partition(opening + "\n")
    inside, last, after = rest.partition(closing)
    if not first or not last or opening in rest or closing in after:
        raise DataError(
            f"The document must hold the lines {opening!r} and {closing!r} once each, in that "
            "order: the table is written between them."
        )
    return f"{before}{first}{made(inside)}{last}{after}"


def rewrite(document: Path) -> str:
    """Return a document with its table updated.

    Args:
        document: One of `documents`.
    """
    text = document.read_text(encoding="utf-8")
    if document == METHODS:
        return between(text, *MARKS["methods"], lambda _: table_of_methods())
    if document == PERSPECTIVES:
        return between(text, *MARKS["perspectives"], lambda _: table_of_perspectives())
    if document == TRAINER:
        return between(text, *MARKS["trainer"], lambda _: lists_of_support())
    text = between(text, *MARKS["summary"], lambda _: summary(document.stem))
    return between(text, *MARKS["settings"], lambda old: table_of_settings(document.stem, old))


def documents() -> list[Path]:
    """Return the documents that have a table."""
    return [PERSPECTIVES, TRAINER, METHODS, *(CARDS / f"{name}.md" for name in names())]


def table_of_methods() -> str:
    """Return the table of all methods, each with a link to its card."""
    rows = []
    for name in names():
        result = entry(name)
        cells = (result.summary, result.cost, result.memory, result.paper)
        rows.append([f"[`{name}`]({name}.md)", *(cell.replace("|", "\\|") for cell in cells)])
    return pipe_table(("method", "what it does", "cost", "memory", "source"), rows) + "\n"


UNIT = "F is one forward pass"


def summary(name: str) -> str:
    """Return the box at the top of a method's card: what it does, its cost and its results.

    Args:
        name: A registered method.
    """
    method = entry(name)
    links = ", ".join(f"[{page}](../results/{page}.md)" for page in measured(name))
    rows = [
        ["What", method.summary],
        ["Cost of a step", f"{method.cost} ({'' if name == 'plain' else '`plain`: 3F; '}{UNIT})"],
        ["Additional memory", method.memory],
        ["Cannot be combined with", ", ".join(f"`{name}`" for name in method.incompatible)],
        ["Results", links],
    ]
    cells = [[label, value.replace("|", "\\|")] for label, value in rows if value]
    return pipe_table((f"`{name}`", ""), cells) + "\n"


def measured(name: str) -> list[str]:
    """Return the pages of docs/results with scores of a method."""
    pages = {
        file.parts[-3]
        for file in RESULTS.glob("*/*/study.json")
        for column in json.loads(file.read_text(encoding="utf-8"))["columns"]
        if name in column["method"].split(" + ")
    }
    written = {path.stem: path for path in (ROOT / "docs" / "results").glob("*.md")}
    pages |= {
        page
        for page in ("every-method", "four-methods")
        if f"`{name}`" in written[page].read_text(encoding="utf-8")
    }
    return sorted(pages & written.keys())


def table_of_perspectives() -> str:
    """Return the table of all perspectives: their metrics, needs and defaults."""
    rows = [
        [
            f"`{each.name}`",
            each.summary,
            each.needs,
            "yes" if each.by_default else f"no: {each.left_out}",
        ]
        for each in perspectives().values()
    ]
    return pipe_table(("perspective", "what it measures", "needs", "default"), rows) + "\n"


def table_of_settings(name: str, old: str) -> str:
    """Return a table of a method's settings, and of training settings with published values.

    Args:
        name: A registered method.
        old: The current table in the card, whose published values are kept.
    """
    kept = [[cell.strip() for cell in _CELL.split(line)[1:-1]] for line in old.splitlines()]
    published = {row[SETTING]: row[PUBLISHED] for row in kept if len(row) == len(HEADINGS)}
    config = entry(name).config
    from_scratch = flat(name, config.from_scratch({}))
    own = {preset: flat(name, values) for preset, values in config.PRESETS.items()}
    rows = []
    for setting in settings(name):
        key = setting["setting"]
        default = _shown(setting["default"])
        if key in from_scratch:
            default += f"; {_shown(from_scratch[key])} from scratch"
        chosen = [f"{preset} {_shown(own[preset][key])}" for preset in own if key in own[preset]]
        meaning = setting["meaning"].replace("``", "`")
        rows.append([f"`{key}`", default, setting["bounds"], "; ".join(chosen), meaning])
    fields: Mapping[str, Any] = TrainSettings.model_fields
    for key in TRAINING:
        if published.get(f"`train.{key}`"):
            default, takes = _shown(fields[key].get_default()), bounds(fields[key])
            rows.append([f"`train.{key}`", default, takes, "", "common training setting"])
    for row in rows:
        row[:] = [cell.replace("|", "\\|") for cell in row]
        row.insert(PUBLISHED, published.get(row[SETTING], ""))
    return pipe_table(HEADINGS, rows) + "\n"


def lists_of_support() -> str:
    """Return how `RobustTrainer` treats each argument and hook of `Trainer`."""
    parts: list[str] = []
    for title, kind in KINDS.items():
        parts.append(f"### {title}\n")
        for verdict, introduction in INTRODUCTIONS.items():
            named = {name: each for name, each in kind.items() if each.verdict == verdict}
            if not named:
                continue
            parts.append(f"{introduction}\n")
            if verdict == "works":
                # One paragraph, because a list of bullets would have 100 lines.
                parts.append(f"```text\n{fill(', '.join(named), width=100)}\n```\n")
                named = {name: each for name, each in named.items() if each.note}
            parts += [f"- `{name}`: {each.note}" for name, each in named.items()]
            if named:
                parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def _shown(value: Any) -> str:
    """Return a value in the syntax of ``--set``."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}".replace("e-0", "e-")
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return "none" if value is None else str(value)


if __name__ == "__main__":
    for path in documents():
        path.write_text(rewrite(path), encoding="utf-8")
