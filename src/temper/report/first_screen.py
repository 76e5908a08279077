"""The first screen as HTML: the page's upper part, and what a notebook shows of a result."""

from __future__ import annotations

import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from temper.display.cells import Comparison
from temper.display.folders import Source
from temper.report import view
from temper.report.headline import USUAL
from temper.report.trained import verdict


def first_screen(source: Source, comparison: Comparison) -> str:
    """Return the first screen as a block that needs no script, no network and no second file.

    Its styles reach nothing else on the page that holds it.

    Args:
        source: The study, run or evaluation folder that was read.
        comparison: Its scores.
    """
    values = screen_values(source, comparison)
    return templates().get_template("block.html").render(values)


def screen_values(source: Source, comparison: Comparison) -> dict[str, Any]:
    """Return what ``first_screen.html`` prints.

    Args:
        source: The folder that was read.
        comparison: Its scores.
    """
    return {
        "title": comparison.title,
        "about": view.about(source, comparison),
        "headline": verdict(source, comparison),
        "comparison": comparison,
        "usual": USUAL,
    }


def templates() -> Environment:
    """Return the environment of the templates, which escapes every string."""
    environment = Environment(
        loader=PackageLoader("temper.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Names stand in backticks, as on a terminal; the text is escaped before they are marked up.
    environment.filters["code"] = lambda text: Markup(
        re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text)))
    )
    return environment
