"""``temper report``: build the page of a study, run or evaluation from its folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from temper.api.nested import check_reported, refuse, split_list
from temper.cli import options
from temper.cli.screen import notice, print_headline, print_json, say
from temper.errors import SettingError
from temper.functional.units import MARGIN


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a study, a run or an evaluation.")],
    markdown: Annotated[
        bool,
        typer.Option(
            "--markdown",
            help="Print the overview as Markdown, and write no page: one line per score, or, with "
            "more than six columns, one line per column.",
        ),
    ] = False,
    perspectives: Annotated[
        str | None,
        typer.Option(
            "--perspectives",
            metavar="<str>",
            help="With --markdown: print all scores of these instead, one line per score; `all` "
            "for every perspective.",
        ),
    ] = None,
    examples: Annotated[
        int,
        typer.Option(
            "--examples", min=0, help="Examples under attack that the page shows at most."
        ),
    ] = 300,
    figures: Annotated[
        bool, typer.Option("--figures", help="Write every figure to FOLDER/figures/ as SVG too.")
    ] = False,
    margin: options.Margin = MARGIN,
    detect: options.Detect = None,
    imports: options.Imports = None,
    as_json: options.Json = False,
) -> None:
    """Build report.html of a study, a run or an evaluation."""
    if perspectives is not None and not markdown:
        raise SettingError(
            "--perspectives chooses what --markdown prints; the page has all of them. Add "
            "--markdown, or leave it out."
        )
    if figures and markdown:
        raise SettingError("--markdown prints text and no figures. Leave one of the two out.")
    options.import_methods(imports)
    refuse([partial(check_reported, folder)])
    from temper.report import build, comparison, overview
    from temper.report.markdown import markdown as table
    from temper.report.page import export_figures

    if markdown:
        compared = comparison(folder, margin=margin, detect=detect)
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
    else:
        page = build(folder, examples=examples, margin=margin, detect=detect)
        if not as_json and (detect is not None or margin != MARGIN):
            from temper.report import headline

            print_headline(headline(comparison(folder, margin=margin, detect=detect)))
        files = export_figures(folder) if figures else []
        if as_json:
            print_json({"report": str(page), "figures": [str(file) for file in files]})
        else:
            say(f"Report: {page}")
            if files:
                say(f"{len(files)} figures: {files[0].parent}")
