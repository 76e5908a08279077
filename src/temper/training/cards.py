"""The table of settings in a method's card: ours beside the paper's, made from the classes.

A card holds it between the lines ``<!-- settings -->`` and ``<!-- /settings -->``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from temper.errors import DataError
from temper.methods.description import (
    CLOSING,
    OPENING,
    between,
    bounds,
    flat,
    markdown,
    settings,
)
from temper.methods.registry import entry, names
from temper.training.settings import TrainSettings

SETTINGS, END_OF_SETTINGS = "<!-- settings -->", "<!-- /settings -->"
TRAINING = (
    "learning_rate",
    "epochs",
    "batch_size",
    "weight_decay",
    "warmup_ratio",
    "schedule",
)
"""What of a run is told beside a method's own settings."""
_HEADINGS = ("setting", "default", "takes", "paper or its code", "presets", "meaning")


def rewrite(text: str, document: Path) -> str:
    """Return a document with the tables between its markers made anew.

    Args:
        text: Its text.
        document: Its path; the name of a card is that of its method.

    Raises:
        DataError: If it holds no marker, holds them twice or out of order, or is the card of no
            method.
    """
    if SETTINGS not in text:
        return between(text, OPENING, CLOSING, lambda: markdown(document.parent))
    if document.stem not in names():
        raise DataError(
            f"The settings of a method are written into its card, and {document.stem!r} is no "
            "method. Name the file as the method."
        )
    return between(text, SETTINGS, END_OF_SETTINGS, lambda: settings_table(document.stem))


def settings_table(name: str) -> str:
    """Write a method's settings, and what a run takes, as a table in Markdown.

    Args:
        name: A registered method.
    """
    from_scratch = flat(name, entry(name).config.from_scratch({}))
    own = {preset: flat(name, values) for preset, values in entry(name).config.PRESETS.items()}
    lines = []
    for setting in settings(name):
        key = setting["setting"]
        default = _shown(setting["default"])
        if key in from_scratch:
            default += f"; {_shown(from_scratch[key])} from scratch"
        chosen = [f"{preset} {_shown(own[preset][key])}" for preset in own if key in own[preset]]
        lines.append(
            (
                f"`{key}`",
                default,
                setting["bounds"],
                setting["published"],
                "; ".join(chosen),
                setting["meaning"].replace("``", "`"),
            )
        )
    sources = entry(name).config.PUBLISHED
    fields: Mapping[str, Any] = TrainSettings.model_fields
    for key in TRAINING:
        lines.append(
            (
                f"`train.{key}`",
                _shown(fields[key].get_default()),
                bounds(fields[key]),
                str(sources.get(f"train.{key}", "")),
                "",
                "of the run, whatever the method",
            )
        )
    rows = [_HEADINGS, *lines]
    heading, *body = (f"| {' | '.join(map(_cell, row))} |\n" for row in rows)
    return "".join((heading, f"|{'---|' * len(_HEADINGS)}\n", *body))


def _shown(value: Any) -> str:
    """Write a value as ``--set`` takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}".replace("e-0", "e-")
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return "none" if value is None else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
