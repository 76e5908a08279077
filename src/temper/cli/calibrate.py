"""``temper calibrate``: fit on held-out rows what `temper predict` says beside the label."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import typer

from temper.api.keywords import CALIBRATE
from temper.api.nested import nested, of_paths, of_sources, of_tables, refuse
from temper.calibration.settings import CalibrationSettings, known_backend
from temper.checkpoints.checkpoint import Checkpoint
from temper.cli import options
from temper.cli.screen import print_json, say
from temper.errors import SettingError
from temper.evaluation.settings import SetSources
from temper.models.names import checkpoint_folder
from temper.settings import section


def calibrate(
    model: Annotated[str, typer.Argument(help="Folder of a trained model.")],
    *,
    data: options.HeldOutData = None,
    text_column: options.TextColumn = None,
    label_column: options.LabelColumn = None,
    eval_rows: options.EvalRows = None,
    max_length: options.ModelLength = None,
    with_dev: options.WithDev = False,
    label_names: options.LabelNames = None,
    label_map: options.LabelMap = None,
    anomaly: options.Anomaly = None,
    coverage: options.Coverages = None,
    by: options.By = None,
    false_alarms: options.FalseAlarms = None,
    device: options.Device = None,
    backend: options.Backend = "torch",
    remove: options.Remove = False,
    assignments: options.Assignments = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Fit on held-out rows what makes a model's answers trustworthy, and keep it in its folder.

    A temperature; thresholds of prediction sets that hold the truth as often as --coverage says
    (intervals of a regression); a detector of anomalies with a threshold at --false-alarms; and
    states of held-out rows, which later batches are compared with. `temper predict` applies all
    of it; `temper evaluate` measures the model without it.
    """
    given = {
        "data": data, "text_column": text_column, "label_column": label_column,
        "eval_rows": eval_rows, "max_length": max_length, "label_names": label_names,
        "label_map": label_map, "anomaly": anomaly, "coverage": coverage, "by": by,
        "false_alarms": false_alarms, "device": device,
    }  # fmt: skip
    if remove:
        others = (*given.values(), with_dev or None, assignments, config)
        if any(value is not None for value in others):
            raise SettingError("--remove fits nothing: leave the other options out.")
        from temper.calibration.files import remove_calibration

        file = remove_calibration(Checkpoint(model), known_backend(backend))
        if as_json:
            print_json({"removed": str(file)})
        else:
            say(f"Removed {file}")
        return
    if data is None:
        raise SettingError("--data is needed: held-out rows to fit on.")
    tree = nested(CALIBRATE, config, given, assignments)
    chosen = section(CalibrationSettings, "calibrate", tree.pop("calibrate", {}))
    sets = tree["sets"] = section(SetSources, "sets", tree.get("sets", {}))
    refuse(
        [
            partial(checkpoint_folder, model, what="A calibration"),
            *of_tables(tree),
            *of_paths(tree),
            *of_sources(sets.given()),
        ]
    )
    from temper.calibration.calibrate import calibrate as fit
    from temper.cli.bars import progress
    from temper.evaluation.evaluate import EvaluationRequest

    request = EvaluationRequest.of(tree, model=Checkpoint(model))
    with progress() as shown:
        made = fit(
            request, chosen, with_dev=with_dev, backend=known_backend(backend), progress=shown
        )
    if as_json:
        print_json(made)
    else:
        for line in lines(made):
            say(line)


def lines(made: Mapping[str, Any]) -> list[str]:
    """Say what was fitted, a line each.

    Args:
        made: The content of ``calibration.json``.
    """
    rows, told = made["held_out"], []
    if "int8" in made:
        found, same = made["int8"], made["int8"]["same_label"]
        alike = f"the same label for {same:.1%}, " if same is not None else ""
        told.append(
            f"8-bit copy vs. the model on {found['rows']} rows: {alike}differences of "
            f"{found['mean_difference']:.4f} on average and {found['largest_difference']:.4f} at "
            "most."
        )
    if "temperature" in made:
        nll, ece = made["nll"], made["ece_15"]
        fresh = f"{rows['thresholds']} others" if rows["thresholds"] else "these"
        told.append(
            f"Temperature {made['temperature']:.4f} from {rows['fit']} rows: NLL "
            f"{nll['before']:.4f} -> {nll['after']:.4f}, ECE {ece['before']:.4f} -> "
            f"{ece['after']:.4f} on {fresh}."
        )
    if "sets" in made:
        for coverage, entry in made["sets"]["thresholds"].items():
            size = entry.get("mean_size")
            kind, what = "Sets", f"{size:.2f} classes on average" if size is not None else ""
            if size is None:
                kind, what = "Intervals", f"{entry['threshold']:.4g} to either side"
            told.append(
                f"{kind} that hold the truth with probability {coverage}: {what} "
                f"({rows['thresholds']} rows, by {made['sets']['by']})."
            )
    if "anomaly" in made:
        found = made["anomaly"]
        told.append(
            f"Anomalies by {found['detector']}, learnt from {found['learnt_from']['rows']} "
            f"{found['learnt_from']['kind'].replace('_', '-')} rows: above "
            f"{found['threshold']:.4g} at most {found['false_alarms']:.0%} of ordinary texts."
        )
    with_int8 = " with --backend int8" if "int8" in made else ""
    return [*told, f"`temper predict`{with_int8} applies it."]
