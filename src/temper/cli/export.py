"""``temper export``: write a classifier into a folder that needs no Temper."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from temper.api.keywords import EXPORT
from temper.api.nested import check_loadable, of_paths, of_tables, refuse
from temper.checkpoints.checkpoint import Checkpoint
from temper.cli import options
from temper.cli.screen import print_json, print_table, progress, say
from temper.errors import SettingError
from temper.evaluation.settings import PredictorSettings
from temper.settings import section


def export(
    model: Annotated[
        str,
        typer.Argument(help="Folder of a run, checkpoint or adapter, or Hub id of a classifier."),
    ],
    *,
    out: options.ExportOut,
    data: options.ComparedData = None,
    text_column: options.TextColumn = None,
    label_column: options.LabelColumn = None,
    eval_rows: options.HeldOutRows = None,
    max_length: options.ModelLength = None,
    label_names: options.LabelNames = None,
    label_map: options.LabelMap = None,
    onnx: options.Onnx = False,
    int8: options.Int8 = False,
    assignments: options.Assignments = None,
    as_json: options.Json = False,
) -> None:
    """Export a model and its calibration to a folder that runs without Temper.

    The folder has a Transformers checkpoint and pipeline.py, which needs only torch, numpy and
    Transformers. The export fails if pipeline.py does not give the predictions of `temper predict`.
    An adapter is merged into its base model.
    """
    tree = options.known_settings(EXPORT, locals())
    reading = dict(tree.get("data", {}))
    max_length = reading.pop("max_length", None)
    if data is None and reading:
        names = ", ".join(f"`{name}`" for name in reading)
        raise SettingError(f"{names} has no effect without --data. Leave it out, or pass --data.")
    checkpoint = Checkpoint(model)
    refuse(partial(check_loadable, checkpoint), *of_tables(tree), *of_paths(tree))
    from temper.evaluation.request import EvaluationRequest

    request = None if data is None else EvaluationRequest.of(tree, model=checkpoint)
    if request is not None:
        request.check_rows()
    from temper.export.export import export as write

    with progress() as shown:
        made = write(
            checkpoint,
            out,
            onnx=onnx,
            int8=int8,
            request=request,
            max_length=max_length,
            settings=section(PredictorSettings, "predictor", tree.get("predictor", {})),
            progress=shown,
        )
    if as_json:
        print_json({"out": str(out), **made})
        return
    compared = [
        {
            "file": name,
            "accuracy": None if item["accuracy"] is None else round(item["accuracy"], 4),
            "same_label": f"{item['alike']} of {item['rows']}",
            "largest_difference": f"{item['largest_difference']:.1e}",
        }
        for name, item in made["likeness"].items()
    ]
    title = f"Compared on {made['compared']['rows']} rows"
    print_table(compared, title=title)
    say(f"Exported: {out}. Run it with: python {out / 'pipeline.py'} TEXT")
