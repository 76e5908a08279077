"""``python -m reproduction``: run a paper's table as studies, and set its numbers beside ours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from temper.cli import options
from temper.cli.screen import print_json, print_table, say
from temper.errors import CheckpointError, SettingError, unknown

if TYPE_CHECKING:
    from reproduction.specification import Specification
    from reproduction.table import ReproductionTable

TABLE = "table.md"
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
            "--keep",
            metavar="DIR",
            help="Copy plans, records and scores there (no weights), for --from.",
        ),
    ] = None,
    printed: Annotated[
        Path | None,
        typer.Option(
            "--printed", metavar="FILE.toml", help="The paper's numbers, as [[printed]] entries."
        ),
    ] = None,
    check_arithmetic: Annotated[
        bool,
        typer.Option(
            "--check-arithmetic",
            help="Compare printed averages with the mean of the printed columns; train nothing.",
        ),
    ] = False,
    write: Annotated[
        Path | None,
        typer.Option(
            "--write",
            metavar="FILE.md",
            help="Write claims, tables and arithmetic into that document, between its markers.",
        ),
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table as Markdown.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Run a table or figure of the papers as studies; resume it where it was stopped."""
    from reproduction.specification import THEOREM

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
    shown = {"--from": source, "--keep": keep, "--markdown": markdown or None}
    if write is not None or check_arithmetic:
        numbers = "--write" if write is not None else "--check-arithmetic"
        _refuse(f"{numbers} reads numbers alone and trains nothing", {**training, **shown})
        _without_training(name, write, printed=printed, check=check_arithmetic, as_json=as_json)
        return
    if name is None:
        _refuse("Without the name of a table all are listed", {**training, **shown})
        _list(as_json=as_json)
        return
    if name == THEOREM:
        why = f"{name} is a simulation with settings of its own"
        _refuse(why, {**training, **shown, "--printed": printed})
        _theorem(as_json=as_json)
        return
    if markdown and as_json:
        raise SettingError("--markdown and --json are two forms of one table. Give one of them.")
    specification = _specification(name, printed)
    from reproduction.run import check_apart, check_room_to_keep
    from reproduction.run import keep as keep_scores
    from reproduction.table import reproduction_table
    from temper.training.checkpoint_folder import make_folder, remove_empty, write_text

    folder = source or _folder(specification, scale, out)
    if keep is not None:
        check_apart(folder, keep)
        if source is None:
            family = specification.family
            check_room_to_keep(keep, family=family, scale=scale or SMALL)
            # Whether it can be made is known before any training; it is made with its first score.
            remove_empty(make_folder(keep, option="--keep"))
    if source is not None:
        _refuse("--from makes the table from what is finished", training)
    else:
        asked = {
            "seeds": seeds,
            "cases": None if cases is None else tuple(options.split_list(cases, "--cases")),
            "model": model,
            "data_root": data_root,
            "device": device,
        }
        _run(specification, scale or SMALL, asked, folder, 1 if workers is None else workers)
    table = reproduction_table(specification, folder)
    if not table.lines:
        raise CheckpointError("\n".join([f"No case of {name} has numbers.", *table.gone]))
    made = {} if source is not None else {folder: table}
    if keep is not None:
        names = keep_scores(specification, folder, keep)
        # Scores may have been kept from several folders, so that there are more than here.
        made[keep] = reproduction_table(specification, keep)
        say(f"Kept {len(names)} of {len(specification.case)} cases: {keep}", as_json=True)
    for place, whole in made.items():
        write_text(place / f"{name}-{TABLE}", whole.markdown())
    if markdown:
        typer.echo(table.markdown(), nl=False)
        return
    _show(table, as_json=as_json)
    for place in made:
        say(f"Table: {place / f'{name}-{TABLE}'}", as_json=True)


def _list(*, as_json: bool) -> None:
    """Print name, place and title of every table and figure."""
    from reproduction.document import listing

    rows = listing()
    if as_json:
        print_json(rows)
    else:
        print_table(rows, list(rows[0]))


def _refuse(why: str, given: Mapping[str, object]) -> None:
    """Refuse options that would be ignored."""
    named = [option for option, value in given.items() if value is not None]
    if named:
        verb, them = ("say", "them") if len(named) > 1 else ("says", "it")
        raise SettingError(f"{why}, so {', '.join(named)} {verb} nothing there. Leave {them} out.")


def _folder(specification: Specification, scale: str | None, out: Path | None) -> Path:
    """Return where the studies are run."""
    return out or Path("runs") / "reproduction" / f"{specification.family}-{scale or SMALL}"


def _without_training(
    name: str | None, write: Path | None, *, printed: Path | None, check: bool, as_json: bool
) -> None:
    """Do what reads numbers alone."""
    from reproduction.document import rewrite_file

    if write is not None:
        if check or name is not None or printed is not None:
            raise SettingError("--write fills in a document from what is kept; give it alone.")
        changed = rewrite_file(write)
        say(f"{'Written' if changed else 'As it was'}: {write}", as_json=as_json)
        return
    _arithmetic(name, printed, as_json=as_json)


def _specification(name: str, printed: Path | None) -> Specification:
    from reproduction.specification import (
        THEOREM,
        read_specification,
        specification_names,
    )

    if name not in specification_names():
        raise SettingError(unknown("reproduction", name, [*specification_names(), THEOREM]))
    return read_specification(name, numbers=printed)


def _run(
    specification: Specification, scale: str, asked: dict[str, Any], folder: Path, workers: int
) -> None:
    """Run what is asked for."""
    from reproduction.cases import Asked
    from reproduction.run import run_reproduction
    from reproduction.specification import SCALES
    from temper.app.settings import ROOT
    from temper.cli.bars import progress

    if asked["data_root"] is None and os.environ.get(ROOT):
        asked = {**asked, "data_root": Path(os.environ[ROOT])}
    known = next((each for each in SCALES if each == scale), None)
    if known is None:
        raise SettingError(unknown("scale", scale, SCALES))
    with progress() as shown:
        run_reproduction(
            Asked(specification, known, **asked), folder, workers=workers, progress=shown
        )


def _show(table: ReproductionTable, *, as_json: bool) -> None:
    if as_json:
        print_json(table.to_json())
        return
    headings = [heading or "verdict" for heading in table.headings]
    rows = [dict(zip(headings, texts, strict=True)) for texts in table.cells]
    if rows:
        print_table(rows, headings, title=table.title)
    else:
        say(table.title, as_json=False)
    for title, lines in table.sections.items():
        print_table(lines, list(lines[0]), title=f"\n{title}")
    for note in table.notes:
        say(note, as_json=False)


def _theorem(*, as_json: bool) -> None:
    from dataclasses import asdict

    from reproduction.theorem import TITLE, check_theorem

    findings = check_theorem()
    if as_json:
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
    print_table(rows, list(rows[0]), title=TITLE)


def _arithmetic(name: str | None, printed: Path | None, *, as_json: bool) -> None:
    from reproduction.arithmetic import check_averages, count_printed
    from reproduction.specification import AVERAGE, specification_names

    if name is None and printed is not None:
        raise SettingError("--printed holds the numbers of one table: name that table too.")
    names = specification_names() if name is None else (name,)
    read = [_specification(each, printed) for each in names]
    found = check_averages(read)
    unchecked = sum(number.case == AVERAGE for each in read for number in each.printed) - len(found)
    rows = [
        {
            "table": each.place,
            "method": each.column,
            "score": each.score,
            "printed": str(each.printed),
            "mean": f"{each.mean:.4f}",
            "numbers": each.over,
            "verdict": "right" if each.right else "wrong",
        }
        for each in found
    ]
    if as_json:
        print_json({"printed": count_printed(read), "averages": rows})
        return
    if rows:
        print_table(rows, list(rows[0]))
    wrong = sum(not each.right for each in found)
    say(
        f"{count_printed(read)} printed numbers at hand, {len(found)} averages checked, "
        f"{wrong} wrong."
        + (f" {unchecked} could not be: not every case's number is at hand." if unchecked else ""),
        as_json=False,
    )
