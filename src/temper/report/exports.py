"""The figures of a report as files."""

from __future__ import annotations

import re
from pathlib import Path

from temper.display.folders import read
from temper.display.wording import slug
from temper.errors import CheckpointError
from temper.files import make_folder, write_text
from temper.report.figures import figures
from temper.report.svg import svg
from temper.report.table import compare


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
        target / f"{place:02d}-{slug(figure.title)[:60].strip('-')}.svg": svg(figure, alone=True)
        for place, figure in enumerate(figures(source, compare(source)), start=1)
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
