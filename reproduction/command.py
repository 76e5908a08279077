"""``python -m reproduction``: run a paper's table as studies and print its numbers next to ours."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from reproduction.document import ROOT, Run, write_documents
from reproduction.specification import (
    PAPERS,
    SCALES,
    THEOREM,
    read_specification,
    specification_names,
)
from temper.cli.screen import print_json, print_table, say
from temper.errors import CheckpointError, SettingError, unknown

SMALL = "small"
"""The default scale."""
TRAINING = ("scale", "seeds", "cases", "model", "data_root", "device", "workers", "out")
"""Options that only a training reads."""
NAMED_MODES = ("--check-arithmetic", "--printed")
"""Modes that accept the name of one table; without it they use all."""


def parser() -> ArgumentParser:
    """Return the parser of the command line."""
    made = ArgumentParser(
        "temper reproduce",
        description="Train what a table or figure of the papers reports, and print it next to "
        "the published numbers. Run the same command again to resume.",
        allow_abbrev=False,
    )
    add = made.add_argument
    add("name", nargs="?", metavar="TABLE", help="table or figure (default: list all of them)")
    add(
        "--scale",
        help="full: as in the paper; small: fewer or smaller runs (default); smoke: a few steps",
    )
    add("--seeds", type=int, metavar="N", help="number of seeds (default: the scale's)")
    add("--cases", metavar="A,B", help="MODEL-TASK pairs to train (default: the scale's)")
    add(
        "--model",
        metavar="NAME",
        help="train this model instead of those of the paper; the table says so",
    )
    add(
        "--data-root",
        type=Path,
        metavar="DIR",
        help="folder with the data of tasks and suites (default: TEMPER_DATA)",
    )
    add("--device", help="auto, cpu, cuda, cuda:N or mps (default: auto)")
    add(
        "--workers",
        type=int,
        metavar="N",
        help="number of runs that are trained in parallel (default: 1)",
    )
    add(
        "--out",
        type=Path,
        metavar="DIR",
        help="output folder (default: runs/reproduction/FAMILY-SCALE)",
    )
    add(
        "--from",
        dest="source",
        type=Path,
        metavar="DIR",
        help="make the table from finished runs in this folder; train nothing",
    )
    add(
        "--keep",
        type=Path,
        metavar="DIR",
        help="copy settings and scores of the runs to this folder, for --from",
    )
    add(
        "--figure",
        type=Path,
        metavar="FILE",
        help="also plot the cost and gain of each method to this SVG file",
    )
    add("--printed", action="store_true", help="print the published numbers; train nothing")
    add(
        "--check-arithmetic",
        action="store_true",
        help="print published numbers that contradict each other; train nothing",
    )
    add(
        "--claims",
        action="store_true",
        help="print whether each claim of the papers was reproduced; train nothing",
    )
    add(
        "--write",
        action="store_true",
        help="update the output of commands that docs/ shows (for developers)",
    )
    form = made.add_mutually_exclusive_group()
    form.add_argument(
        "--markdown", dest="form", action="store_const", const="markdown", help="print Markdown"
    )
    form.add_argument("--json", dest="form", action="store_const", const="json", help="print JSON")
    return made


def main(arguments: Sequence[str], *, run: Run) -> None:
    """Run the command.

    Args:
        arguments: The arguments after ``temper reproduce``.
        run: Runs a command line of ``temper``, whose output documents show.

    Raises:
        TemperError: An argument, the data or a stored study is wrong.
        SystemExit: The command line is not understood, or asks for help.
    """
    given = parser().parse_args(arguments)
    modes: dict[str, tuple[bool, Callable[[Namespace], None]]] = {
        "--write": (given.write, partial(_write, run=run)),
        "--claims": (given.claims, _claims),
        "--check-arithmetic": (given.check_arithmetic, _arithmetic),
        "--printed": (given.printed, _printed),
        THEOREM: (given.name == THEOREM, _theorem),
        "the list of all tables": (given.name is None, _list),
    }
    for mode, (asked, act) in modes.items():
        if asked:
            unread = [*TRAINING, "source", "keep", "figure"]
            if mode not in NAMED_MODES and given.name not in (None, THEOREM):
                unread.append("name")
            _refuse(f"{mode} only reads numbers and trains nothing", given, unread)
            act(given)
            return
    _table(given)


def _table(given: Namespace) -> None:
    """Print a table, after running what it needs."""
    name = _known(given.name)
    specification = read_specification(name)
    if given.figure is not None and not specification.frontier:
        raise SettingError(f"{name} does not define a gain: leave --figure out.")
    scale = given.scale or SMALL
    if scale not in SCALES:
        raise SettingError(unknown("scale", scale, SCALES))
    from reproduction.frontier import frontier
    from reproduction.layout import markdown, sections
    from reproduction.plan import Request
    from reproduction.run import Record, check_keep, keep, run_reproduction
    from reproduction.table import reproduction_table
    from temper.cli.screen import progress
    from temper.evaluation.settings import ROOT as DATA_ROOT
    from temper.files import make_folder, remove_empty, write_text
    from temper.report.svg import svg

    family = specification.family
    folder = given.source or given.out or Path("runs", "reproduction", f"{family}-{scale}")
    if given.source is not None:
        _refuse("--from only reads finished runs", given, TRAINING)
    else:
        if given.keep is not None:
            check_keep(given.keep, folder, Record(family, scale))
            # Whether it can be made is known before any training; it is made with its first score.
            remove_empty(make_folder(given.keep, option="--keep"))
        root = given.data_root or (
            Path(os.environ[DATA_ROOT]) if os.environ.get(DATA_ROOT) else None
        )
        request = Request(
            specification,
            scale,
            seeds=given.seeds,
            cases=None if given.cases is None else tuple(given.cases.split(",")),
            model=given.model,
            data_root=root,
            device=given.device,
        )
        workers = 1 if given.workers is None else given.workers
        with progress() as shown:
            run_reproduction(request, folder, workers=workers, progress=shown)
    table = reproduction_table(specification, folder)
    if not table.lines:
        raise CheckpointError("\n".join([f"No case of {name} has numbers.", *table.not_run_notes]))
    if given.keep is not None:
        kept = keep(specification, folder, given.keep)
        say(f"Kept {len(kept)} of {len(specification.case)} cases: {given.keep}", as_json=True)
    if given.figure is not None:
        write_text(given.figure, svg(frontier(table), alone=True))
        say(f"Figure: {given.figure}", as_json=True)
    if given.source is None:
        write_text(folder / f"{name}-table.md", markdown(table))
        say(f"Table: {folder / f'{name}-table.md'}", as_json=True)
    if given.form == "json":
        print_json(table.to_json())
    elif given.form == "markdown":
        print(markdown(table), end="")
    else:
        say(table.title, as_json=False)
        for title, rows in sections(table).items():
            print_table(rows, list(rows[0]), title=f"\n{title}")
        for note in table.notes:
            say(note, as_json=False)


def _refuse(why: str, given: Namespace, unread: Sequence[str]) -> None:
    """Refuse arguments that would be ignored."""
    flags = {"source": "--from", "name": "the name of a table"}
    named = [
        flags.get(argument, f"--{argument.replace('_', '-')}")
        for argument in unread
        if getattr(given, argument) is not None
    ]
    if named:
        verb, them = ("have", "them") if len(named) > 1 else ("has", "it")
        raise SettingError(f"{why}, so {', '.join(named)} {verb} no effect. Leave {them} out.")


def _known(name: str) -> str:
    """Return the name of a table; the error for an unknown name also lists the simulation."""
    if name not in specification_names():
        raise SettingError(unknown("reproduction", name, [*specification_names(), THEOREM]))
    return name


def _show(rows: Sequence[Mapping[str, Any]], given: Namespace, *, content: Any = None) -> None:
    """Print lines of texts by heading, or all of the content as JSON."""
    if given.form == "json":
        print_json(rows if content is None else content)
    elif given.form == "markdown" and rows:
        from reproduction.layout import rows_in_markdown

        print(rows_in_markdown(rows))
    elif rows:
        print_table(rows, list(rows[0]))


def _list(given: Namespace) -> None:
    """Print all tables and figures with their sizes."""
    rows = []
    for name in specification_names():
        each = read_specification(name)
        small = each.scales["small"]
        at_small = f"{len(each.cases('small'))} \u00d7 {len(each.columns(small))}"
        rows.append(
            {
                "name": name,
                "table": f"{PAPERS[each.paper].partition(',')[0]}, {each.place}",
                "content": each.title,
                "cases \u00d7 methods": f"{len(each.case)} \u00d7 {len(each.columns())}",
                "at scale small": f"{at_small}, {small.seeds} seeds",
                "printed numbers": str(len(each.printed)),
                "source of the grid": each.grid_from,
            }
        )
    theorem = {"name": THEOREM, "table": "UEGR, Theorem 1", "content": "checked by simulation"}
    _show([*rows, {**dict.fromkeys(rows[0], ""), **theorem}], given)


def _claims(given: Namespace) -> None:
    """Print the verdict of the stored numbers on each claim."""
    from reproduction.claims import judge_claims, read_claims

    rows = [
        {
            "paper": judged.paper,
            "claim": judged.claim.text,
            "verdict": judged.verdict,
            "printed": judged.paper_number,
            "ours": judged.number,
            "minimum detectable effect": judged.least,
            "command": judged.command,
        }
        for judged in judge_claims(read_claims(), ROOT)
    ]
    _show(rows, given)


def _theorem(given: Namespace) -> None:
    from reproduction.theorem import TITLE, check_theorem

    findings = check_theorem()
    rows = [
        {
            "statement": finding.text,
            "expected": finding.expected,
            "measured": finding.measured,
            "verdict": "holds" if finding.holds else "does not hold",
        }
        for finding in findings
    ]
    every = [asdict(finding) for finding in findings]
    _show(rows, given, content={"title": TITLE, "findings": every})


def _printed(given: Namespace) -> None:
    """Print the numbers of the papers, one grid per table."""
    from reproduction.layout import printed_rows

    names = specification_names() if given.name is None else (_known(given.name),)
    tables = [each for name in names if (each := read_specification(name)).printed]
    if not tables:
        raise SettingError(f"{given.name} has no printed numbers.")
    if given.form == "json":
        print_json(
            [
                {"table": each.name, **number.model_dump()}
                for each in tables
                for number in each.printed
            ]
        )
        return
    for each in tables:
        heading = f"{PAPERS[each.paper].partition(',')[0]}, {each.place}"
        print(f"\n**{heading}**\n" if given.form == "markdown" else f"\n{heading}")
        _show(printed_rows(each), given)


def _arithmetic(given: Namespace) -> None:
    from reproduction.arithmetic import check_averages, check_prose

    names = specification_names() if given.name is None else (_known(given.name),)
    tables = {name: read_specification(name) for name in specification_names()}
    checked = [each for name in names for each in check_averages(tables[name])]
    checked += check_prose({name: tables[name] for name in names} if given.name else tables)
    wrong = [each for each in checked if not each.right]
    rows = [
        {"where": each.where, "statement": each.says, "printed numbers": each.numbers}
        for each in wrong
    ]
    printed = sum(len(tables[name].printed) for name in names)
    _show(rows, given, content={"printed": printed, "checked": [asdict(each) for each in checked]})
    if given.form != "json":
        print(
            f"\n{printed} printed numbers; {len(checked)} averages and statements checked, "
            f"{len(wrong)} wrong."
        )


def _write(given: Namespace, *, run: Run) -> None:
    changed = write_documents(run)
    print("\n".join(f"Written: {page}" for page in changed) or "Nothing changed.")
