"""``temper report``: build the page of a study, run or evaluation from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from temper.api.nested import split_list
from temper.cli import options
from temper.cli.screen import notice, print_headline, print_json, say
from temper.display.folders import read
from temper.errors import SettingError
from temper.functional.units import MARGIN


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a study, a run or an evaluation.")],
    markdown: options.Markdown = False,
    perspectives: options.PrintedPerspectives = None,
    examples: options.Examples = 300,
    figures: options.Figures = False,
    margin: options.Margin = MARGIN,
    detect: options.Detect = None,
    imports: options.Imports = None,
    as_json: options.Json = False,
) -> None:
    """Write report.html, with scores and figures, into the folder of a study, run or evaluation."""
    if perspectives is not None and not markdown:
        raise SettingError(
            "--perspectives chooses what --markdown prints; the page has all of them. Add "
            "--markdown, or leave it out."
        )
    if figures and markdown:
        raise SettingError("--markdown prints text and no figures. Leave one of the two out.")
    options.import_methods(imports)
    # Before imports that take seconds.
    source = read(folder)
    from temper.report import compare, export_figures, headline, overview, write_report
    from temper.report.markdown import markdown as table

    compared = compare(source, margin=margin, detect=detect)
    if markdown:
        if compared.unfinished:
            notice(compared.unfinished)
        if perspectives is not None:
            named = split_list(perspectives, "--perspectives")
            typer.echo(table(compared, () if list(named) == ["all"] else named))
            return
        result = overview(compared)
        if len(result.header) == 1:
            raise SettingError(
                f"{folder} has no scores to print. Evaluate the run first: temper evaluate "
                f"{folder} --data SOURCE --out DIR, then name that folder."
            )
        typer.echo(result.markdown())
        return
    page = write_report(source, compared, examples=examples)
    files = export_figures(source, compared) if figures else []
    if as_json:
        print_json({"report": str(page), "figures": [str(file) for file in files]})
        return
    if detect is not None or margin != MARGIN:
        print_headline(headline(compared))
    say(f"Report: {page}")
    if files:
        say(f"{len(files)} figures: {files[0].parent}")
