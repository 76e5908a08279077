"""The figures of a report as files."""

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

from temper.display.drawing import Figure
from temper.display.folders import read
from temper.errors import CheckpointError, SettingError, unknown
from temper.report.figures import figures
from temper.report.table import compare

FORMATS = ("svg", "png")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTH = 900  # pixels; a figure's height is its own
# Entries that a legend shows in a line, and pixels of a line of it.
_ONE_LINE, _LEGEND_LINE = 5, 22


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
