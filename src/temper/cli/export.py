"""``temper export``: write a classifier into a folder that needs no Temper."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from temper.api.keywords import EXPORT
from temper.api.quick_checks import check_predictor, of_paths, of_tables, refuse
from temper.checkpoints.checkpoint import Checkpoint
from temper.cli import options
from temper.cli.screen import print_json, print_table, say
from temper.errors import SettingError
from temper.evaluation.sources import PredictorSettings
from temper.settings import section


@options.with_settings(EXPORT)
def export(
    model: Annotated[
        str,
        typer.Argument(help="Folder of a run, checkpoint or adapter, or a classifier's id."),
    ],
    *,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Folder to write.")],
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Write model.onnx too.", show_default=False)
    ] = False,
    int8: Annotated[
        bool,
        typer.Option(
            "--int8",
            help="Write model-int8.onnx too, with weights of eight bits: smaller, faster on a "
            "processor, and a little different, which is told.",
            show_default=False,
        ),
    ] = False,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="Rows that what was written is compared on, and labels that it should get right; "
            "a few texts of our own if left out.",
        ),
    ] = None,
    as_json: options.Json = False,
    **settings: Any,
) -> None:
    """Write a plain Transformers checkpoint with its calibration and a file that runs both.

    pipeline.py needs torch, numpy and Transformers, and answers as `temper predict` does; that is
    compared before the folder takes its place. An adapter is merged into its base.
    """
    tree = EXPORT.tree(None, {"data": data, **settings})
    reading = dict(tree.get("data", {}))
    max_length = reading.pop("max_length", None)
    if data is None and reading:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in reading)
        raise SettingError(f"Without --data there are no rows: leave {names} out.")
    refuse([partial(check_predictor, model), *of_tables(tree), *of_paths(tree)])
    from temper.cli.bars import progress
    from temper.evaluation.evaluate import EvaluationRequest
    from temper.export.export import export as write

    checkpoint = Checkpoint(model)
    request = None if data is None else EvaluationRequest.of(tree, model=checkpoint)
    with progress() as shown:
        made = write(
            checkpoint,
            to,
            onnx=onnx,
            int8=int8,
            request=request,
            max_length=max_length,
            settings=section(PredictorSettings, "predictor", tree.get("predictor", {})),
            progress=shown,
        )
    if as_json:
        print_json({"to": str(to), **made})
        return
    compared = [
        {
            "file": name,
            "accuracy": None if each["accuracy"] is None else round(each["accuracy"], 4),
            "same_label": f"{each['alike']} of {each['rows']}",
            "largest_difference": f"{each['largest_difference']:.1e}",
        }
        for name, each in made["likeness"].items()
    ]
    title = f"Compared on {made['compared']['rows']} rows"
    print_table(compared, tuple(compared[0]), title=title)
    say(f"Exported: {to}. Run it with: python {to / 'pipeline.py'} TEXT")
