"""What must fit before any work, whoever answers: also asked before a model is trained."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from temper.data.examples import Examples
from temper.errors import DataError, SettingError, TemperError, unknown
from temper.evaluation import perspectives
from temper.evaluation.alignment import Aligned, align
from temper.evaluation.measurement import EvaluationData
from temper.evaluation.scoring import CLASSIFICATION_METRICS, REGRESSION_METRICS
from temper.evaluation.settings import EvaluationSettings

OF_TWO = "tells entailment from all else, but the model has three classes."


def check_before_training(
    data: EvaluationData, settings: EvaluationSettings, train: Examples
) -> None:
    """Check sets and settings for a model that is to be trained.

    Args:
        data: The sets.
        settings: What is to be measured.
        train: The rows that it will be trained on, which say what its classes are.

    Raises:
        SettingError: Settings fit neither data nor classes, or name a model that is none.
        DataError: Sets do not fit such a model.
    """
    regression = train.kind == "regression"
    numbers = [str(index) for index in range(train.classes)]
    names = None if regression else train.label_names or numbers
    faults = setting_faults(data, settings, names, regression=regression)
    if faults:
        raise SettingError("\n".join(faults))
    broken = data_faults(data, regression=regression)
    if broken:
        raise DataError("\n".join(broken))
    # Placeholders, as the trained model will have: labels are matched to them by index.
    unnamed = [f"LABEL_{number}" for number in numbers]
    aligned_sets(data, None if regression else train.label_names or unnamed)


def setting_faults(
    data: EvaluationData,
    settings: EvaluationSettings,
    label_names: Sequence[str] | None,
    *,
    regression: bool,
    skipped: Collection[str] = (),
) -> list[str]:
    """Say which settings do not fit, in sentences.

    Args:
        data: The sets.
        settings: What is to be measured.
        label_names: The model's classes by index, None where they have no names.
        regression: Whether it gives values and not classes.
        skipped: Perspectives that will not be measured.
    """
    metrics = REGRESSION_METRICS if regression else CLASSIFICATION_METRICS
    faults = [] if data.metric in metrics else [unknown("metric", data.metric, metrics)]
    for name in settings.perspectives:
        if name not in skipped:
            faults += perspectives.perspective(name).misfits(data, settings, label_names)
    sets = ["dev", *data.shift, *data.adversarial, *data.anomaly]
    twice = sorted({name for name in sets if sets.count(name) > 1})
    if twice:
        faults.append(
            f"Names of sets must be distinct and not 'dev', got {twice} twice. Rename one."
        )
    return faults


def data_faults(data: EvaluationData, *, regression: bool) -> list[str]:
    """Say which sets have no rows or labels of another kind, in sentences.

    Args:
        data: The sets.
        regression: Whether the model gives values and not classes.
    """
    wanted = "regression" if regression else "classification"
    labelled = {"dev": data.dev, **data.shift, **data.adversarial}
    if data.held_out is not None:
        labelled[data.held_out.name] = data.held_out
    broken = [
        f"Set {name!r} must be labelled for a {wanted}, as the model is; it is {examples.kind}."
        for name, examples in labelled.items()
        if examples.kind != wanted
    ]
    return broken + [
        f"Set {name!r} has no rows." for name, examples in data.sets.items() if not len(examples)
    ]


def aligned_sets(
    data: EvaluationData, label_names: Sequence[str] | None
) -> dict[tuple[str, str], Aligned]:
    """Bring the labels of all sets into the model's order, or dev's where it names no classes.

    Args:
        data: The sets.
        label_names: The model's classes by index, None where they have no names.

    Returns:
        Every labelled set, and the rows to fit on, by kind (``dev``, ``shift``, ``adversarial``,
        ``fit``, ``held-out``) and name.

    Raises:
        DataError: Labels do not fit; it names every such set.
    """
    dev = align(data.dev, label_names)
    if dev.entailment is not None:
        raise DataError(
            f"The dev set {OF_TWO} Give such a set as a shift set, and one with three labels as "
            "dev."
        )
    target = dev.examples.label_names if label_names is None else label_names
    sets = {("shift", name): examples for name, examples in data.shift.items()}
    sets |= {("adversarial", name): examples for name, examples in data.adversarial.items()}
    for kind, examples in (("fit", data.fit), ("held-out", data.held_out)):
        if examples is not None:
            sets[kind, examples.name] = examples
    found = {("dev", "dev"): dev}
    faults: list[str] = []
    for (kind, name), examples in sets.items():
        try:
            found[kind, name] = align(examples, target)
        except TemperError as error:
            faults.append(f"{kind.capitalize()} set {name!r}: {error}")
            continue
        if kind == "held-out" and found[kind, name].entailment is not None:
            faults.append(
                f"Held-out set {name!r} {OF_TWO} A temperature is fitted on labels of all of them: "
                "give rows with three labels."
            )
    if faults:
        raise DataError("\n".join(faults))
    return found
