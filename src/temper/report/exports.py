"""What a report writes beside its page: the whole of it as Markdown, and its figures as files."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from temper.display.cells import Comparison, Row
from temper.display.drawing import Figure
from temper.display.folders import Source, read
from temper.display.wording import escaped, folded, pipe_table
from temper.errors import CheckpointError, SettingError, unknown
from temper.functional.units import ABSENT
from temper.report import view
from temper.report.figures import figures
from temper.report.markdown import MARKS
from temper.report.table import compare

FORMATS = ("svg", "png")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTH = 900  # pixels; a figure's height is its own
# Entries that a legend shows in a line, and pixels of a line of it.
_ONE_LINE, _LEGEND_LINE = 5, 22


def document(source: Source, comparison: Comparison) -> str:
    """Write the whole report as Markdown: answer, scores, notices, runs, settings, versions, data.

    Args:
        source: The folder that was read.
        comparison: Its scores.

    Returns:
        The text of ``report.md``; text from data stays text.
    """
    parts = [f"# {escaped(comparison.title)}"]
    about = view.about(source, comparison)
    parts.append("\n".join(f"- {term}: {escaped(value)}" for term, value in about))
    parts.append(escaped(comparison.answer))
    parts.append("## Scores")
    parts.append(_legend(comparison))
    rows: dict[str, list[Row]] = {}
    for row in comparison.shown:
        rows.setdefault(row.group, []).append(row)
    for group, own in rows.items():
        parts += [f"### {escaped(group)}", score_table(comparison, own)]
    if comparison.missing:
        parts += ["## Runs that are not in these numbers", _listed(comparison.missing)]
    if comparison.notices:
        parts += ["## Notices", _listed(folded(comparison.notices))]
    if runs := view.runs(source):
        header = ["run", "column", "seed", "steps", "seconds", "step", "key"]
        lines = [[escaped(run[name]) for name in header] for run in runs]
        parts += ["## Runs", pipe_table(header, lines)]
    if costs := view.costs(source):
        lines = [[escaped(text) for text in line] for line in costs]
        parts += [
            "## Cost of a step",
            pipe_table(["column", "seconds a step", "over the reference"], lines),
        ]
    for heading, facts in (
        ("Settings", view.settings(source)),
        ("Versions", view.versions(source)),
        ("Data", view.data(source)),
    ):
        if facts:
            parts += [f"## {heading}", _facts(comparison, facts)]
    return "\n\n".join(part for part in parts if part) + "\n"


def score_table(comparison: Comparison, rows: Sequence[Row]) -> str:
    """Write scores with their spread or interval, their difference and n.

    Args:
        comparison: Whose columns stand in the table.
        rows: The scores.
    """
    header = ["score"]
    for name in comparison.columns:
        header.append(escaped(name))
        if comparison.reference is not None and name != comparison.reference:
            header.append(escaped(f"{name} \u2212 {comparison.reference}"))
    lines = []
    for row in rows:
        line = [escaped(row.heading())]
        for name in comparison.columns:
            line.append(_value(row, name))
            difference = row.cells[name].difference
            if comparison.reference is not None and name != comparison.reference:
                mark = "" if difference is None else MARKS.get(difference.verdict, "")
                if difference is not None and difference.why:
                    mark = f" ({difference.said})"
                line.append(row.difference_text(name) + mark)
        counts = {count for cell in row.cells.values() for count in cell.examples}
        seeds = {len(cell.seeds) for cell in row.cells.values()}
        line.append(_counts(seeds, "seed") + ", " + _counts(counts, "example"))
        lines.append(line)
    return pipe_table([*header, "n"], lines)


def choose_formats(formats: Iterable[str]) -> tuple[str, ...]:
    """Check that figures can be written, before any work.

    Args:
        formats: Of `FORMATS`.

    Returns:
        The formats, each once.

    Raises:
        SettingError: A format is unknown, or the renderer or a browser is missing.
    """
    wanted = tuple(dict.fromkeys(formats))
    for name in wanted:
        if name not in FORMATS:
            raise SettingError(unknown("figure format", name, FORMATS))
    if not wanted:
        raise SettingError(f"Expected a figure format, got none. Give one of {', '.join(FORMATS)}.")
    if importlib.util.find_spec("kaleido") is None:
        raise SettingError(
            "Writing figures needs the package kaleido, which is not installed. Run: "
            "pip install 'temper-lm[figures]'"
        )
    browser()
    return wanted


def browser() -> str:
    """Return the Chromium that draws figures: ``BROWSER_PATH``, else one of `BROWSERS`.

    Raises:
        SettingError: There is none, or ``BROWSER_PATH`` names no file.
    """
    named = os.environ.get("BROWSER_PATH")
    if named:
        if not Path(named).is_file():
            raise SettingError(
                f"BROWSER_PATH must name the program of a Chromium, got {named!r}, which is no "
                "file. Correct it or unset it."
            )
        return named
    for name in BROWSERS:
        if found := shutil.which(name):
            return found
    raise SettingError(
        f"Writing figures needs a Chromium, and none of {', '.join(BROWSERS)} is on the PATH. "
        "Install one (Debian: apt-get install chromium), or name it in BROWSER_PATH."
    )


def export_figures(folder: Path | str, formats: Iterable[str]) -> list[Path]:
    """Write every figure of a report to ``FOLDER/figures/``, each whole or not at all.

    Args:
        folder: A study, run or evaluation folder (docs/formats.md).
        formats: Of `FORMATS`.

    Returns:
        The files, ``NN-TITLE.FORMAT`` in the order of the page; earlier figures are replaced.

    Raises:
        SettingError: A format is unknown, or the renderer or a browser is missing.
        CheckpointError: The folder cannot be read, or the figures cannot be written.
    """
    wanted = choose_formats(formats)
    source = read(folder)
    drawn = figures(source, compare(source))
    target = Path(folder) / "figures"
    staged = Path(tempfile.mkdtemp(prefix=".figures.", dir=folder))
    try:
        _render(drawn, staged, wanted)
        target.mkdir(exist_ok=True)
        # Figures of an earlier report that this one has not would be taken for its own.
        for file in target.iterdir():
            if re.fullmatch(r"\d\d-[a-z0-9-]*\.(svg|png)", file.name):
                file.unlink()
        written = []
        for file in sorted(staged.iterdir()):
            os.replace(file, target / file.name)
            written.append(target / file.name)
    except OSError as error:
        raise CheckpointError(f"Cannot write figures to {target}: {error}.") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return written


def _render(drawn: Sequence[Figure], folder: Path, formats: Sequence[str]) -> None:
    """Draw figures in one browser that loads nothing from any network."""
    import kaleido

    specs: list[dict[str, Any]] = []
    for place, figure in enumerate(drawn, start=1):
        picture = _titled(figure)
        height = picture.layout.height
        for kind in formats:
            size = {"format": kind, "width": WIDTH, "height": height, "scale": 2}
            path = str(folder / f"{place:02d}-{_slug(figure.title)}.{kind}")
            specs.append({"fig": picture.to_dict(), "path": path, "opts": size})
    # MathJax would come from a network, and no text of ours is maths.
    page = kaleido.PageGenerator(mathjax=False)
    options = {"path": browser(), "page_generator": page}
    kaleido.write_fig_from_object_sync(specs, kopts=options)


def _titled(figure: Figure) -> Any:
    """Return a figure that stands alone: with its title, on white."""
    copy = type(figure.figure)(figure.figure)
    top = 48
    copy.update_layout(
        title={"text": re.sub(r"[<>]", "", figure.title), "font": {"size": 16}, "x": 0.01},
        paper_bgcolor="#ffffff",
        plot_bgcolor="#ffffff",
        height=(copy.layout.height or 340) + top,
        font={"family": "Arial, sans-serif", "size": 13},
    )
    copy.update_layout(margin={"t": top + 12})
    named = sum(trace.name is not None and trace.showlegend is not False for trace in copy.data)
    if named > _ONE_LINE and copy.layout.showlegend:
        # Left to itself a long legend lies on the axis and takes the curves' room.
        room = _LEGEND_LINE * math.ceil(named / 3)
        copy.update_layout(
            height=copy.layout.height + room,
            margin={"b": 56 + room},
            legend={"yref": "container", "y": 0, "yanchor": "bottom"},
        )
    return copy


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60].strip("-")


def _value(row: Row, name: str) -> str:
    cell = row.cells[name]
    text = row.text(name)
    if cell.low is None or cell.high is None:
        return text
    return f"{text} [{row.unit.text(cell.low)}, {row.unit.text(cell.high)}]"


def _counts(counts: Iterable[int], noun: str) -> str:
    said = " or ".join(str(count) for count in sorted(counts)) or ABSENT
    return f"{said} {noun}{'' if said == '1' else 's'}"


def _legend(comparison: Comparison) -> str:
    if comparison.reference is None:
        return "Each score with its 95 % interval over examples."
    return (
        "Mean \u00b1 standard deviation over seeds; differences are paired, with their 95 % "
        f"interval; \u25b2 better and \u25bc worse than {escaped(comparison.reference)} by more "
        "than the noise."
    )


def _listed(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {escaped(sentence)}" for sentence in sentences)


def _facts(comparison: Comparison, facts: Sequence[view.Fact]) -> str:
    lines = [[escaped(text) for text in (fact.name, *fact.values)] for fact in facts]
    return pipe_table(["name", *(escaped(name) for name in comparison.columns)], lines)
