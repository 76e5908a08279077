"""``temper calibrate``: fit calibration and OOD thresholds on held-out rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import typer

from temper.api.keywords import CALIBRATE
from temper.api.nested import of_paths, of_tables, refuse
from temper.calibration.settings import MEASURES, CalibrationSettings, known_backend
from temper.checkpoints.checkpoint import Checkpoint
from temper.cli import options
from temper.cli.screen import print_json, progress, say
from temper.errors import SettingError
from temper.evaluation.settings import SetSources
from temper.models.names import checkpoint_folder
from temper.settings import Faults, section


def calibrate(
    model: Annotated[
        str, typer.Argument(help="Folder of a trained model; the calibration is stored in it.")
    ],
    *,
    data: options.HeldOutData = None,
    text_column: options.TextColumn = None,
    label_column: options.LabelColumn = None,
    eval_rows: options.HeldOutRows = None,
    max_length: options.ModelLength = None,
    with_dev: options.WithDev = False,
    label_names: options.LabelNames = None,
    label_map: options.LabelMap = None,
    anomaly: options.DetectedAnomaly = None,
    coverage: options.Coverages = None,
    by: options.By = None,
    false_alarms: options.FalseAlarms = None,
    threshold: options.Threshold = None,
    device: options.Device = None,
    backend: options.Backend = "torch",
    remove: options.Remove = False,
    assignments: options.Assignments = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Fit calibration, prediction sets and an OOD threshold on held-out rows.

    It fits a temperature (with several labels per text, one per label) and conformal prediction
    sets, or intervals for regression. It also sets the threshold of an OOD detector. With
    --threshold it chooses the probability above which a label is predicted. Hidden states of
    held-out rows are stored, to detect a distribution shift later. `temper predict` uses all of
    this; `temper evaluate` uses only --threshold.
    """
    if remove:
        given = locals()
        others = (*(given[name] for name in CALIBRATE if name in given), assignments, config)
        if with_dev or any(value is not None for value in others):
            raise SettingError("--remove accepts no other option than --backend. Leave them out.")
        from temper.calibration.files import remove_calibration

        file = remove_calibration(Checkpoint(model), known_backend(backend))
        if as_json:
            print_json({"removed": str(file)})
        else:
            say(f"Removed {file}")
        return
    if data is None:
        raise SettingError(
            "--data is missing. Pass labeled rows to fit on that the model was not trained on."
        )
    tree = options.settings(CALIBRATE, locals())
    check_used(tree)
    chosen = section(CalibrationSettings, "calibrate", tree.pop("calibrate", {}))
    sets = tree["sets"] = section(SetSources, "sets", tree.get("sets", {}))
    refuse(partial(checkpoint_folder, model), *of_tables(tree), *of_paths(tree, *sets.given()))
    from temper.evaluation.request import EvaluationRequest

    request = EvaluationRequest.of(tree, model=Checkpoint(model))
    request.check_rows()
    from temper.calibration.calibrate import calibrate as fit

    with progress() as shown:
        made = fit(
            request, chosen, with_dev=with_dev, backend=known_backend(backend), progress=shown
        )
    if as_json:
        print_json(made)
    else:
        for line in lines(made):
            say(line)


def check_used(tree: Mapping[str, Any]) -> None:
    """Raise a `SettingError` for settings of an evaluation that calibration does not read."""
    faults = Faults()
    for table in ("sets", "evaluate"):
        known = [path[1] for path in CALIBRATE.values() if path[0] == table]
        settings = tree.get(table)
        # `section` raises for a value that is not a table.
        faults += [
            f"`{table}.{key}` has no effect on a calibration, which reads "
            f"{', '.join(f'{table}.{name}' for name in known)}. Leave it out."
            for key in (settings if isinstance(settings, Mapping) else ())
            if key not in known
        ]
    faults.refuse()


def lines(made: Mapping[str, Any]) -> list[str]:
    rows, output = made["held_out"], []
    if "int8" in made:
        result, same = made["int8"], made["int8"]["same_label"]
        labels = f"the same label for {same:.1%}, " if same is not None else ""
        output.append(
            f"8-bit copy vs. the model on {result['rows']} rows: {labels}differences of "
            f"{result['mean_difference']:.4f} on average and {result['largest_difference']:.4f} at "
            "most."
        )
    fresh = f"{rows['thresholds']} others" if rows["thresholds"] else "these"
    several = isinstance(made.get("temperature"), Sequence)
    if "temperature" in made:
        values = made["temperature"] if several else [made["temperature"]]
        what = f"Temperature {values[0]:.4f}"
        if several:
            what = f"Temperatures of {len(values)} labels, {min(values):.4f} to {max(values):.4f},"
        changes = [(title, name) for name, title in MEASURES.items() if name in made]
        output.append(f"{what} from {rows['fit']} rows: {_changes(made, changes)} on {fresh}.")
    if "decision" in made:
        result = made["decision"]
        values = result["thresholds"]
        what = f"Class 1 is predicted above {values[0]:.4f}"
        if several:
            what = f"Labels are predicted above {min(values):.4f} to {max(values):.4f}"
        changes = [("F1", "f1"), ("precision", "precision"), ("recall", "recall")]
        output.append(f"{what} ({result['rule']}): {_changes(result, changes)} on {fresh}.")
    if "sets" in made:
        by, count = made["sets"]["by"], rows["thresholds"]
        for coverage, entry in made["sets"]["thresholds"].items():
            what = f"coverage {coverage}{' in each class' if by == 'class' else ''}"
            if several and by == "all":
                what = f"an expected {float(coverage):.0%} of a text's labels"
            if "mean_size" in entry:
                unit = "labels" if several else "classes"
                size = f"Prediction sets with {what}: {entry['mean_size']:.2f} {unit} on average"
            else:
                size = f"Intervals with {what}: {entry['threshold']:.4g} to either side"
            output.append(f"{size}, from {count} rows.")
    if "anomaly" in made:
        result = made["anomaly"]
        output.append(
            f"OOD detector {result['detector']}, fitted on {result['learnt_from']['rows']} "
            f"{result['learnt_from']['kind'].replace('_', '-')} rows: flags a score above "
            f"{result['threshold']:.4g}, and at most {result['false_alarms']:.0%} of "
            "in-distribution texts."
        )
    with_int8 = " with --backend int8" if "int8" in made else ""
    return [*output, f"`temper predict`{with_int8} applies it."]


def _changes(made: Mapping[str, Any], scores: Iterable[tuple[str, str]]) -> str:
    values = ((title, made[name]) for title, name in scores)
    return ", ".join(f"{t} {item['before']:.4f} -> {item['after']:.4f}" for t, item in values)
