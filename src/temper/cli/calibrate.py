"""``temper calibrate``: fit a temperature on held-out rows and keep it beside the model."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from temper.app.keywords import HELD_OUT
from temper.app.quick_checks import of_settings, refuse
from temper.cli import options
from temper.cli.screen import print_json, say
from temper.errors import SettingError
from temper.models.names import checkpoint_folder


@options.with_settings(HELD_OUT)
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
    assignments: options.Assignments = None,
    config: options.Config = None,
    as_json: options.Json = False,
    **settings: Any,
) -> None:
    """Fit the temperature that makes a classifier as sure as it is right.

    It is written as calibration.json into the model's folder, and `temper predict` applies it. The
    labels that are predicted never change; `temper evaluate` measures the model without it.
    """
    if remove:
        others = (*settings.values(), data, fit_rows, with_dev or None, assignments, config)
        if any(value is not None for value in others):
            raise SettingError("--remove fits nothing: leave the other options out.")
        from temper.app.calibrate import remove_temperature

        file = remove_temperature(model)
        if as_json:
            print_json({"removed": str(file)})
        else:
            say(f"Removed {file}")
        return
    if data is None:
        raise SettingError("--data is needed: held-out rows to fit the temperature on.")
    tree = HELD_OUT.tree(config, {"data": data, **settings}, assignments or ())
    refuse([partial(checkpoint_folder, model, what="A temperature"), *of_settings(tree)])
    from temper.app.calibrate import calibrate as fit
    from temper.app.evaluate import EvaluationRequest
    from temper.cli.bars import progress

    request = EvaluationRequest.of(tree, model=model)
    with progress() as shown:
        made = fit(request, fit_rows=fit_rows, with_dev=with_dev, progress=shown)
    if as_json:
        print_json(made)
        return
    nll, ece = made["nll"], made["ece_15"]
    say(
        f"Temperature {made['temperature']:.4f} from {made['held_out']['rows']} rows: NLL "
        f"{nll['before']:.4f} -> {nll['after']:.4f}, ECE {ece['before']:.4f} -> "
        f"{ece['after']:.4f} on these. `temper predict` applies it."
    )
