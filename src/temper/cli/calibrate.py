"""``temper calibrate``: fit a temperature on held-out rows and keep it beside the model."""

from __future__ import annotations

from typing import Annotated

import typer

from temper.cli import early, options
from temper.cli.screen import print_json, say
from temper.errors import SettingError


def calibrate(
    model: Annotated[str, typer.Argument(help="Folder of a trained model.")],
    *,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="Held-out rows with labels. Those that the model, or a run of a soup, was trained "
            "on are left out, and so are its dev rows.",
        ),
    ] = None,
    fit_rows: Annotated[
        int | None,
        typer.Option("--fit-rows", min=1, help="Fit on that many of the rows, drawn by label."),
    ] = None,
    with_dev: Annotated[
        bool,
        typer.Option(
            "--with-dev",
            help="Take dev rows of the model, too: calibration that is measured on them with the "
            "temperature looks too good.",
        ),
    ] = False,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the temperature that the folder keeps.")
    ] = False,
    sets: options.Sets = None,
    config: options.Config = None,
    max_length: options.MaxLength = None,
    device: options.Device = None,
    text_column: options.TextColumn = None,
    text_pair_column: options.TextPairColumn = None,
    label_column: options.LabelColumn = None,
    encoding: options.Encoding = None,
    skip_bad_rows: options.SkipBadRows = False,
    eval_split: options.EvalSplit = None,
    as_json: options.Json = False,
) -> None:
    """Fit the temperature that makes a classifier as sure as it is right.

    It is written as calibration.json into the model's folder, and `temper predict` applies it. The
    labels that are predicted never change; `temper evaluate` measures the model without it.
    """
    given = {
        "data.source": data,
        "data.max_length": max_length,
        "data.text_column": text_column,
        "data.text_pair_column": text_pair_column,
        "data.label_column": label_column,
        "data.encoding": encoding,
        "data.skip_bad_rows": skip_bad_rows or None,
        "data.eval_split": eval_split,
    }
    if remove:
        others = (*given.values(), fit_rows, with_dev or None, sets, config, device)
        if any(value is not None for value in others):
            raise SettingError("--remove fits nothing: leave the other options out.")
        from temper.app.calibrate import remove_temperature

        file = remove_temperature(model)
        if as_json:
            print_json({"removed": str(file)})
        else:
            say(f"Removed {file}", as_json=False)
        return
    if data is None:
        raise SettingError("--data is needed: held-out rows to fit the temperature on.")
    tree = options.nested(config, given, sets)
    early.refuse(early.of_calibration(tree, model))
    from temper.app.calibrate import calibrate as fit
    from temper.app.evaluation import Judging
    from temper.cli.bars import progress

    asked = Judging.of(tree, model=model, device=device)
    with progress() as shown:
        made = fit(asked, fit_rows=fit_rows, with_dev=with_dev, progress=shown)
    if as_json:
        print_json(made)
        return
    nll, ece = made["nll"], made["ece_15"]
    say(
        f"Temperature {made['temperature']:.4f} from {made['held_out']['rows']} rows: NLL "
        f"{nll['before']:.4f} -> {nll['after']:.4f}, ECE {ece['before']:.4f} -> "
        f"{ece['after']:.4f} on these. `temper predict` applies it.",
        as_json=False,
    )
