"""Write the report as one self-contained HTML file.

The template escapes every string. In addition, the page's content security policy forbids loading
anything, and all scripts except those with listed hashes. So text from data cannot run as code.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
from importlib import metadata
from pathlib import Path
from typing import Any

from markupsafe import Markup

from temper.display.cells import Comparison
from temper.display.charts import HeatMap, Lines, style
from temper.display.folders import Source, read
from temper.display.views import Heading
from temper.display.wording import folded, slug
from temper.errors import CheckpointError
from temper.files import asset, make_folder, write_text, writing
from temper.functional.units import MARGIN
from temper.report import view
from temper.report.derived import views
from temper.report.error_analysis import SHOWN, error_analysis
from temper.report.examples import MOST, gallery
from temper.report.figures import Section, figures, sections
from temper.report.levels import USUAL
from temper.report.markdown import document
from temper.report.svg import sample, svg
from temper.report.table import compare, write
from temper.report.trained import verdict
from temper.report.view import Opening, leading, overview

logger = logging.getLogger(__name__)


def build(
    folder: Path | str,
    out: Path | str | None = None,
    *,
    examples: int = MOST,
    margin: float = MARGIN,
    detect: float | None = None,
    opening: Opening | None = None,
) -> Path:
    """Write the report of a study, a run or an evaluation; return the HTML file.

    It also writes ``scores.csv`` and ``report.md`` (NAME.md for NAME.html), and ``table.json`` for
    a study. No model is loaded.

    Args:
        folder: A study, run or evaluation folder (docs/formats.md).
        out: The HTML file to write; ``report.html`` in the folder by default.
        examples: Maximum number of attacked examples on the page, >= 0.
        margin: Largest negligible difference in points; 0 turns it off.
        detect: Difference in points to detect; the page reports the number of seeds it needs.
        opening: Replaces the headline and the next steps of the error analysis.

    Raises:
        CheckpointError: The folder is none of these or damaged, or ``out`` cannot be written.
    """
    source = read(folder)
    compared = compare(source, margin=margin, detect=detect)
    return write_report(source, compared, out, examples=examples, opening=opening)


def write_report(
    source: Source,
    comparison: Comparison,
    out: Path | str | None = None,
    *,
    examples: int = MOST,
    opening: Opening | None = None,
) -> Path:
    """Write the report of a folder that was already read and compared; see `build`."""
    out = source.folder / "report.html" if out is None else Path(out)
    if out.is_dir():
        raise CheckpointError(
            f"{out} is a folder, expected a file for the report. Name a .html file."
        )
    if out.suffix == ".md":
        raise CheckpointError(
            f"The report is an HTML page, but {out} has the ending of Markdown. Name a .html file."
        )
    shown, table, runs = gallery(source, most=examples), overview(comparison), view.runs(source)
    apart: dict[str, bool] = {Heading.ERRORS: shown is not None, Heading.COST: bool(runs)}
    environment = view.templates()
    environment.filters["numbered"] = lambda texts: list(enumerate(texts))
    environment.filters["svg"] = lambda figure: Markup(svg(figure))
    names = ["page.js", *(["examples.js"] if shown else [])]
    scripts = [asset("temper.report", name) for name in names]
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    text = environment.get_template("page.html").render(
        **screen_values(source, comparison),
        opening=opening,
        kind=source.kind,
        Heading=Heading,
        notices=folded(comparison.notices),
        overview=None if table.turned else table,
        header=comparison.headings,
        groups=view.groups(comparison),
        leading={row.key for view in views().values() for row in leading(comparison, view.name)},
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
        hashes=[f"sha256-{base64.b64encode(digest).decode()}" for digest in digests],
        version=metadata.version("temper-lm"),
    )
    make_folder(out.parent)
    write_text(out, text)
    write_text(out.with_suffix(".md"), document(source, comparison, opening))
    write(comparison, out.parent)
    logger.info("Wrote the report to %s", out)
    return out


def _keys(section: Section, comparison: Comparison) -> list[tuple[str, Markup]]:
    charts = [figure.chart for figure in section.figures]
    bars = not any(isinstance(chart, Lines) for chart in charts)
    drawn = {name for chart in charts if not isinstance(chart, HeatMap) for name in chart.drawn}
    looks = style(comparison.columns, comparison.reference)
    return [
        (name, Markup(sample(look, bar=bars)))
        for name, look in looks.items()
        if name in drawn and len(looks) > 1
    ]


def first_screen(source: Source, comparison: Comparison) -> str:
    """Return the first screen as a self-contained HTML block.

    Its styles do not affect the surrounding page.
    """
    values = screen_values(source, comparison)
    return view.templates().get_template("block.html").render(values)


def screen_values(source: Source, comparison: Comparison) -> dict[str, Any]:
    """Return the template values of ``first_screen.html``."""
    return {
        "title": comparison.title,
        "about": view.about(source, comparison),
        "headline": verdict(source, comparison),
        "comparison": comparison,
        "usual": USUAL,
    }


def export_figures(source: Source, comparison: Comparison) -> list[Path]:
    """Write every figure of a report as SVG to ``FOLDER/figures/``, and return the files.

    They are named ``NN-TITLE.svg`` in page order. Earlier figures are replaced.

    Raises:
        CheckpointError: The figures cannot be written.
    """
    target = source.folder / "figures"
    drawn = {
        target / f"{index:02d}-{slug(figure.title)[:60].strip('-')}.svg": svg(figure, alone=True)
        for index, figure in enumerate(figures(source, comparison), start=1)
    }
    make_folder(target)
    # Remove figures of an earlier report.
    for file in target.iterdir():
        if re.fullmatch(r"\d{2,}-[a-z0-9-]*\.svg", file.name) and file not in drawn:
            with writing(file):
                file.unlink()
    for file, text in drawn.items():
        write_text(file, text)
    return list(drawn)
