"""``temper verify``: check that the files of a folder are unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from temper.cli import options
from temper.cli.screen import print_json, say
from temper.errors import CheckpointError


def verify(
    folder: Annotated[Path, typer.Argument(help="Folder of a run, evaluation, export or study.")],
    *,
    as_json: options.Json = False,
) -> None:
    """Check that the files of a run, evaluation, export or study are unchanged.

    Checksums are recomputed from the files, and scores from the stored predictions. Each difference
    from the recorded values is reported, and the exit code is then not 0.
    """
    from temper.export.verify import verify as verified

    result = verified(folder)
    if as_json:
        print_json([{**vars(item), "folder": str(item.folder)} for item in result])
    faults = [fault for item in result for fault in item.faults]
    if faults:
        raise CheckpointError("\n".join(faults))
    if as_json:
        return
    for item in result:
        counts = {"files": item.files, "scores": item.scores}
        agree = " and ".join(f"{count} {name}" for name, count in counts.items() if count)
        lacking = "" if item.files is not None else " No checksums: an older Temper wrote it."
        agree = agree or "nothing"
        say(f"{item.folder}: {item.kind}, OK: {agree} compared, no differences.{lacking}")
