"""The generated parts of docs/reproduction.md, between their markers."""

from __future__ import annotations

from pathlib import Path

from reproduction import theorem
from reproduction.arithmetic import check_averages, count_printed
from reproduction.claims import judge_claims, read_claims
from reproduction.grid import LEGEND, grid
from reproduction.specification import (
    PAPERS,
    THEOREM,
    read_specification,
    specification_names,
)
from reproduction.table import facts_table, reproduction_table
from temper.errors import DataError
from temper.report.wording import escaped, pipe_table
from temper.training.checkpoint_folder import write_text

PARTS = ("claims", "reproductions", "arithmetic", "tables")


def rewrite(text: str, root: Path) -> str:
    """Return a document with its generated parts made anew.

    Args:
        text: The document, which holds the lines ``<!-- NAME -->`` and ``<!-- /NAME -->`` of each
            of `PARTS` once.
        root: Folder that holds ``results``.

    Raises:
        DataError: If a marker is missing, or does not stand once.
    """
    made = {
        "claims": _claims(root),
        "reproductions": _reproductions(),
        "arithmetic": _sums(),
        "tables": _tables(root),
    }
    for name in PARTS:
        opening, closing = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if text.count(opening) != 1 or text.count(closing) != 1:
            raise DataError(
                f"The document must hold the lines {opening.strip()!r} and {closing!r} once each: "
                "what is made from numbers is written between them."
            )
        before, _, rest = text.partition(opening)
        _, _, after = rest.partition(closing)
        text = f"{before}{opening}{made[name]}\n{closing}{after}"
    return text


def rewrite_file(path: Path) -> bool:
    """Write the generated parts of a document that lies in a clone's ``docs``.

    Args:
        path: The document.

    Returns:
        Whether anything changed.

    Raises:
        DataError: It cannot be read, lacks a marker, or no results are kept beside its folder.
    """
    try:
        before = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text. Give a Markdown file.") from error
    root = path.resolve().parent.parent
    if not (root / "results").is_dir():
        raise DataError(
            f"The numbers of {path} are those that are kept in {root / 'results'}, and there is no "
            "such folder. Give a document in the docs folder of a clone; nothing was written."
        )
    try:
        after = rewrite(before, root)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    if after != before:
        write_text(path, after)
    return after != before


def listing() -> list[dict[str, str]]:
    """Return name, place and title of every table and figure, for lists."""
    read = [read_specification(name) for name in specification_names()]
    rows = [
        {
            "name": each.name,
            "paper": PAPERS[each.paper].partition(",")[0],
            "place": each.place,
            "what": each.title,
        }
        for each in read
    ]
    paper, place, what = theorem.PLACE
    return [*rows, {"name": THEOREM, "paper": paper, "place": place, "what": what}]


def _claims(root: Path) -> str:
    rows = [
        (
            found.paper,
            found.claim.text,
            found.verdict,
            found.number,
            f"`{found.command}`" if found.command else "",
        )
        for found in judge_claims(read_claims(), root)
    ]
    return pipe_table(("paper", "claim", "verdict", "our number", "command"), rows)


def _reproductions() -> str:
    rows = []
    for name in specification_names():
        each = read_specification(name)
        small = each.scales["small"]
        cases, columns = len(each.cases("small")), len(each.columns(small))
        whole = f"{len(each.case)} \u00d7 {len(each.columns())}"
        rows.append(
            (
                f"`{name}`",
                f"{PAPERS[each.paper].partition(',')[0]}, {each.place}",
                escaped(each.title),
                whole,
                f"{cases} \u00d7 {columns}, {small.seeds} seeds",
                str(len(each.printed)),
                escaped(each.grid_from),
            )
        )
    head = ("name", "place", "what", "cases \u00d7 methods", "at small", "printed", "grid")
    return pipe_table(head, rows)


def _tables(root: Path) -> str:
    """Return our numbers of every table whose scores are kept."""
    parts = []
    for name in specification_names():
        each = read_specification(name)
        kept = root / each.folder
        if not kept.is_dir():
            continue
        table = reproduction_table(each, kept)
        cases = {case.name for case in each.case} & {line.case for line in table.lines}
        whole = f"{len(cases)} of {len(each.case)} cases: " if len(each.case) > 1 else ""
        labels = {line.label for line in table.lines}
        what = next(iter(labels)) if len(labels) == 1 else "scores"
        models = sorted({fact["model"] for fact in table.facts})
        against = f" Against `{each.reference}`." if each.against else ""
        parts.append(
            f"### {table.title}\n\n{whole}{escaped(what)}, {escaped(', '.join(models))}.{against} "
            f"`temper reproduce {name} --from {each.folder}`\n\n{grid(table)}"
        )
        if table.chosen:
            parts.append(facts_table(table.chosen))
    return "\n\n".join([LEGEND, *parts]) if parts else "No scores are kept."


def _sums() -> str:
    read = [read_specification(name) for name in specification_names()]
    found = check_averages(read)
    wrong = [each for each in found if not each.right]
    said = (
        f"{count_printed(read)} printed numbers are at hand; {len(found)} averages could be "
        f"checked, {len(wrong)} of them do not equal the mean of the printed columns."
    )
    if not wrong:
        return said
    rows = [
        (each.place, each.column, each.score, str(each.printed), f"{each.mean:.4f}")
        for each in wrong
    ]
    return f"{said}\n\n{pipe_table(('place', 'method', 'score', 'printed', 'mean'), rows)}"
