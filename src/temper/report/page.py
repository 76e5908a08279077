"""Write the report as one HTML file that needs nothing else: no network, no second file.

The page's policy forbids every load, and every script but those whose hashes it names, so text
from data cannot run even if an escape were missed; and the template escapes every string.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
from importlib import metadata
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from temper.display.cells import Comparison
from temper.display.charts import Bars, HeatMap, style
from temper.display.folders import Source, read
from temper.display.views import Question
from temper.display.wording import folded, slug
from temper.errors import CheckpointError
from temper.files import asset, make_folder, write_text
from temper.functional.units import MARGIN
from temper.report import view
from temper.report.derived import views
from temper.report.error_analysis import SHOWN, error_analysis
from temper.report.examples import MOST, gallery
from temper.report.figures import Section, figures, sections
from temper.report.headline import USUAL
from temper.report.markdown import document
from temper.report.svg import sample, svg
from temper.report.table import compare, write, write_scores
from temper.report.trained import verdict
from temper.report.view import leading, overview

logger = logging.getLogger(__name__)


def build(
    folder: Path | str,
    out: Path | str | None = None,
    *,
    examples: int = MOST,
    margin: float = MARGIN,
    detect: float | None = None,
) -> Path:
    """Write the report of a study, a run or an evaluation.

    Beside the page it writes ``scores.csv`` and ``report.md`` (NAME.md for another NAME.html), and
    for a study ``table.json``. Everything is read from rows and JSON; no model is loaded.

    Args:
        folder: A study, run or evaluation folder (docs/formats.md).
        out: The HTML file to write; ``report.html`` in the folder by default.
        examples: Examples under attack that the page holds at most, >= 0.
        margin: Points that a difference must reach to matter; 0 asks for none.
        detect: Points that the study should detect: the page then says how many seeds that takes.

    Returns:
        The file that was written.

    Raises:
        CheckpointError: The folder is none of these or damaged, or ``out`` cannot be written.
    """
    source = read(folder)
    comparison = compare(source, margin=margin, detect=detect)
    out = Path(folder) / "report.html" if out is None else Path(out)
    if out.is_dir():
        raise CheckpointError(f"Expected a file to write the report to, but {out} is a folder.")
    if out.suffix == ".md":
        raise CheckpointError(
            f"The report is a page, but {out} is named as Markdown. Name a .html."
        )
    text = render(source, comparison, examples=examples)
    make_folder(out.parent)
    write_text(out, text)
    write_text(out.with_suffix(".md"), document(source, comparison))
    if source.kind == "study":
        write(comparison, out.parent)
    else:
        write_scores(comparison, out.parent)
    logger.info("Wrote the report to %s", out)
    return out


def render(source: Source, comparison: Comparison, *, examples: int = MOST) -> str:
    """Return the page as text.

    Args:
        source: The folder that was read.
        comparison: Its scores.
        examples: Examples under attack that it holds at most.
    """
    shown, table, runs = gallery(source, most=examples), overview(comparison), view.runs(source)
    apart: dict[str, bool] = {Question.WRONG: shown is not None, Question.COST: bool(runs)}
    environment = templates()
    environment.filters["numbered"] = lambda texts: list(enumerate(texts))
    environment.filters["svg"] = lambda figure: Markup(svg(figure))
    names = ["page.js", *(["examples.js"] if shown else [])]
    scripts = [_normal(asset("temper.report", name)) for name in names]
    return environment.get_template("page.html").render(
        **screen_values(source, comparison),
        kind=source.kind,
        Question=Question,
        notices=folded(comparison.notices),
        overview=None if table.turned else table,
        header=comparison.headings,
        groups=view.groups(comparison),
        leading={row.key for each in views() for row in leading(comparison, each.name)},
        sections=[
            (section, _keys(section, comparison))
            for section in sections(source, comparison)
            if section.rows or section.figures or apart.get(section.heading)
        ],
        errors=error_analysis(source, texts=examples > 0),
        most_classes=SHOWN,
        examples=shown,
        examples_data=shown.to_json() if shown else None,
        runs=runs,
        costs=view.costs(source),
        facts=view.facts(source),
        scripts=[Markup(script) for script in scripts],
        hashes=[_hash(script) for script in scripts],
        version=metadata.version("temper-lm"),
    )


def _normal(script: str) -> str:
    script = script.replace("\r\n", "\n").replace("\r", "\n")
    if "</script" in script.lower():
        raise ValueError("A script of the page holds its own end tag and cannot be inlined.")
    return script


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _keys(section: Section, comparison: Comparison) -> list[tuple[str, Markup]]:
    """Return the columns that a section's curves and bars are of, each with its sign."""
    charts = [figure.chart for figure in section.figures]
    curves_and_bars = [chart for chart in charts if not isinstance(chart, HeatMap)]
    bars = all(isinstance(chart, Bars) for chart in curves_and_bars)
    drawn = frozenset[str]().union(*(chart.drawn for chart in curves_and_bars))
    looks = style(comparison.columns, comparison.reference)
    return [
        (name, Markup(sample(look, bar=bars)))
        for name, look in looks.items()
        if name in drawn and len(looks) > 1
    ]


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


def export_figures(folder: Path | str) -> list[Path]:
    """Write every figure of a report to ``FOLDER/figures/`` as SVG.

    Args:
        folder: A study, run or evaluation folder (docs/formats.md).

    Returns:
        The files, ``NN-TITLE.svg`` in the order of the page; earlier figures are replaced.

    Raises:
        CheckpointError: The folder cannot be read, or the figures cannot be written.
    """
    source = read(folder)
    target = Path(folder) / "figures"
    drawn = {
        target / f"{index:02d}-{slug(figure.title)[:60].strip('-')}.svg": svg(figure, alone=True)
        for index, figure in enumerate(figures(source, compare(source)), start=1)
    }
    make_folder(target)
    try:
        # Figures of an earlier report that this one has not would be taken for its own.
        for file in target.iterdir():
            if re.fullmatch(r"\d{2,}-[a-z0-9-]*\.svg", file.name) and file not in drawn:
                file.unlink()
    except OSError as error:
        raise CheckpointError(f"Cannot write figures to {target}: {error}.") from error
    for file, text in drawn.items():
        write_text(file, text)
    return list(drawn)
