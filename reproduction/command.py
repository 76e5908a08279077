"""``python -m reproduction``: run a paper's table as studies, and set its numbers beside ours."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reproduction.specification import (
    PAPERS,
    SCALES,
    THEOREM,
    Specification,
    read_specification,
    specification_names,
)
from temper.app.keywords import split_list
from temper.cli import options
from temper.cli.screen import print_json, print_table, say
from temper.errors import CheckpointError, SettingError, unknown

if TYPE_CHECKING:
    from reproduction.table import ReproductionTable

SMALL = "small"
"""Scale where none is named."""
app = typer.Typer(rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})


@app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="A table or figure; left out, all are listed.")
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            "--scale",
            help="full: what the paper ran. small, if left out: fewer rows, epochs and cases, for "
            "two cores. smoke: seconds, to see that it runs.",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", help="Number of seeds in place of the scale's.")
    ] = None,
    cases: Annotated[
        str | None,
        typer.Option("--cases", metavar="A,B", help="Cases in place of those of the scale."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Model in place of every other; stated.")
    ] = None,
    data_root: options.DataRoot = None,
    device: options.Device = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", metavar="N", help="Processes that do a case's runs side by side."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder of the studies; runs/reproduction/FAMILY-SCALE if left out."
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="DIR", help="Make the table from finished studies; train nothing."
        ),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            "--keep", metavar="DIR", help="Keep plans, records and scores there, for --from."
        ),
    ] = None,
    printed: Annotated[
        Path | None,
        typer.Option(
            "--printed", metavar="FILE.toml", help="The paper's numbers, as a table `printed`."
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check-arithmetic",
            help="Compare printed averages with the mean of the printed columns.",
        ),
    ] = False,
    claims: Annotated[
        bool, typer.Option("--claims", help="Say what the kept numbers say of the papers' claims.")
    ] = False,
    write: Annotated[
        bool, typer.Option("--write", help="Make anew what the clone's documents show of it.")
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table as Markdown.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Run a table or figure of the papers as studies; resume it where it was stopped."""
    if markdown and as_json:
        raise SettingError("--markdown and --json are two forms of one table. Give one of them.")
    training = {
        "--scale": scale,
        "--seeds": seeds,
        "--cases": cases,
        "--model": model,
        "--data-root": data_root,
        "--device": device,
        "--workers": workers,
        "--out": out,
    }
    form = "json" if as_json else "markdown" if markdown else "text"
    table_options = {"--from": source, "--keep": keep}
    numbers = {"the name of a table": name, "--printed": printed}
    reads = "reads numbers alone and trains nothing"
    without_training: dict[str, tuple[bool, str, Mapping[str, object], Callable[[], None]]] = {
        "--write": (write, reads, numbers, _write),
        "--claims": (claims, reads, numbers, partial(_claims, form)),
        "--check-arithmetic": (check, reads, {}, partial(_arithmetic, name, printed, form)),
        THEOREM: (
            name == THEOREM,
            "is a simulation",
            {"--printed": printed},
            partial(_theorem, form),
        ),
        "a list of all tables": (name is None, reads, {"--printed": printed}, partial(_list, form)),
    }
    for what, (given, why, unread, act) in without_training.items():
        if given:
            _refuse(f"{what} {why}", {**training, **table_options, **unread})
            act()
            return
    assert name is not None  # narrows the type: without a name all are listed
    specification = read_specification(_known(name), numbers=printed)
    from reproduction.layout import markdown as table_in_markdown
    from reproduction.run import Record, check_keep
    from reproduction.run import keep as keep_scores
    from reproduction.table import reproduction_table
    from temper.training.checkpoint_folder import make_folder, remove_empty, write_text

    folder = (
        source or out or Path("runs", "reproduction", f"{specification.family}-{scale or SMALL}")
    )
    if source is not None:
        _refuse("--from makes the table from what is finished", training)
    else:
        if keep is not None:
            check_keep(keep, folder, Record(specification.family, scale or SMALL))
            # Whether it can be made is known before any training; it is made with its first score.
            remove_empty(make_folder(keep, option="--keep"))
        request = {
            "seeds": seeds,
            "cases": None if cases is None else tuple(split_list(cases, "--cases")),
            "model": model,
            "data_root": data_root,
            "device": device,
        }
        _run(specification, scale or SMALL, request, folder, 1 if workers is None else workers)
    table = reproduction_table(specification, folder)
    if not table.lines:
        raise CheckpointError("\n".join([f"No case of {name} has numbers.", *table.gone]))
    if keep is not None:
        names = keep_scores(specification, folder, keep)
        say(f"Kept {len(names)} of {len(specification.case)} cases: {keep}", as_json=True)
    if source is None:
        write_text(folder / f"{name}-table.md", table_in_markdown(table))
        say(f"Table: {folder / f'{name}-table.md'}", as_json=True)
    _show_table(table, form)


def _refuse(why: str, given: Mapping[str, object]) -> None:
    """Refuse options that would be ignored."""
    named = [option for option, value in given.items() if value is not None]
    if named:
        verb, them = ("say", "them") if len(named) > 1 else ("says", "it")
        raise SettingError(f"{why}, so {', '.join(named)} {verb} nothing there. Leave {them} out.")


def _known(name: str) -> str:
    """Return the name of a table; an unknown one is told with that of the simulation too."""
    if name not in specification_names():
        raise SettingError(unknown("reproduction", name, [*specification_names(), THEOREM]))
    return name


def _run(
    specification: Specification, scale: str, request: dict[str, Any], folder: Path, workers: int
) -> None:
    """Run what is asked for."""
    from reproduction.plan import Request
    from reproduction.run import run_reproduction
    from temper.app.settings import ROOT
    from temper.cli.bars import progress

    if request["data_root"] is None and os.environ.get(ROOT):
        request = {**request, "data_root": Path(os.environ[ROOT])}
    known = next((each for each in SCALES if each == scale), None)
    if known is None:
        raise SettingError(unknown("scale", scale, SCALES))
    with progress() as shown:
        asked = Request(specification, known, **request)
        run_reproduction(asked, folder, workers=workers, progress=shown)


def _show(rows: Sequence[Mapping[str, Any]], form: str, *, title: str | None = None) -> None:
    """Print lines of texts by heading."""
    from reproduction.layout import rows_in_markdown

    if form == "markdown":
        typer.echo(rows_in_markdown(rows))
    else:
        print_table(rows, list(rows[0]), title=title)


def _show_table(table: ReproductionTable, form: str) -> None:
    from reproduction.layout import markdown, sections

    if form == "json":
        print_json(table.to_json())
    elif form == "markdown":
        typer.echo(markdown(table), nl=False)
    else:
        say(table.title, as_json=False)
        for title, rows in sections(table).items():
            _show(rows, form, title=f"\n{title}")
        for note in table.notes:
            say(note, as_json=False)


def _list(form: str) -> None:
    """Print what every table and figure is, and how much of it is run."""
    rows = []
    for name in specification_names():
        each = read_specification(name)
        small = each.scales["small"]
        rows.append(
            {
                "name": name,
                "place": f"{PAPERS[each.paper].partition(',')[0]}, {each.place}",
                "what": each.title,
                "cases \u00d7 methods": f"{len(each.case)} \u00d7 {len(each.columns())}",
                "at small": f"{len(each.cases('small'))} \u00d7 {len(each.columns(small))}, "
                f"{small.seeds} seeds",
                "printed": str(len(each.printed)),
                "grid": each.grid_from,
            }
        )
    if form == "json":
        print_json([*rows, {"name": THEOREM}])
        return
    _show(rows, form)
    if form == "text":
        say(f"{THEOREM}: mean and variance of the selective update, by simulation", as_json=False)


def _claims(form: str) -> None:
    """Print what the numbers that are kept in the clone say of each claim."""
    from reproduction.claims import judge_claims, read_claims
    from reproduction.document import ROOT as CLONE

    rows = [
        {
            "paper": judged.paper,
            "claim": judged.claim.text,
            "verdict": judged.verdict,
            "our number": judged.number,
            "command": judged.command,
        }
        for judged in judge_claims(read_claims(), CLONE)
    ]
    if form == "json":
        print_json(rows)
    else:
        _show(rows, form)


def _theorem(form: str) -> None:
    from reproduction.theorem import TITLE, check_theorem

    findings = check_theorem()
    if form == "json":
        print_json({"title": TITLE, "findings": [asdict(finding) for finding in findings]})
        return
    rows = [
        {
            "statement": finding.text,
            "expected": finding.expected,
            "found": finding.found,
            "verdict": "holds" if finding.holds else "does not hold",
        }
        for finding in findings
    ]
    _show(rows, form, title=TITLE)


def _arithmetic(name: str | None, printed: Path | None, form: str) -> None:
    from reproduction.arithmetic import check_averages
    from reproduction.specification import AVERAGE

    if name is None and printed is not None:
        raise SettingError("--printed holds the numbers of one table: name that table too.")
    names = specification_names() if name is None else (_known(name),)
    tables = [read_specification(each, numbers=printed) for each in names]
    averages = check_averages(tables)
    rows = [
        {
            **average._asdict(),
            "mean": f"{average.mean:.4f}",
            "right": "right" if average.right else "wrong",
        }
        for average in averages
    ]
    numbers = [number for table in tables for number in table.printed]
    if form == "json":
        print_json({"printed": len(numbers), "averages": rows})
        return
    if rows:
        _show([{key: str(value) for key, value in row.items()} for row in rows], form)
    unchecked = sum(number.case == AVERAGE for number in numbers) - len(averages)
    typer.echo(
        f"{len(numbers)} printed numbers at hand, {len(averages)} averages checked, "
        f"{sum(not average.right for average in averages)} wrong."
        + (f" {unchecked} could not be: not every case's number is at hand." if unchecked else "")
    )


def _write() -> None:
    from reproduction.document import write_documents

    changed = write_documents()
    typer.echo("\n".join(f"Written: {page}" for page in changed) or "As it was.")
