"""Evaluate one model into a folder: load it and its sets, measure, write the scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from temper.checkpoints.checkpoint import Checkpoint
from temper.checkpoints.folder import check_room, read_json
from temper.data.reading import read_as
from temper.data.settings import TRAINING_ONLY, DataSettings
from temper.display.wording import folded
from temper.errors import CheckpointError, unknown
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.loading import (
    check_pairs,
    load_predictor,
    longest_row,
    predictor_identity,
    unknown_in,
)
from temper.evaluation.measure import (
    changed_since,
    evaluation_key,
    load_evaluated,
    measure,
    stored_key,
    which_rows,
)
from temper.evaluation.named_models import check_named_models, with_reference
from temper.evaluation.predictor import Predictor
from temper.evaluation.seen import trained_among, trained_rows
from temper.evaluation.sets import load_sets
from temper.evaluation.settings import EvaluationSettings
from temper.evaluation.sources import PredictorSettings, SetSources
from temper.files import put_back
from temper.functional.precision import bf16_notices
from temper.progress import Progress
from temper.settings import Faults, section

PLACES = ("data", "evaluate", "sets", "predictor")
OF_THE_RUN = (
    "source",
    "task",
    "config",
    "kind",
    "text_column",
    "text_pair_column",
    "label_column",
    "encoding",
    "skip_bad_rows",
)
"""Settings that say what a run's own data are and how any split of them is read."""


@dataclass(frozen=True)
class EvaluationRequest:
    """What to evaluate, and on what.

    Args:
        model: The model.
        data: The evaluated source.
        evaluate: What is measured.
        sets: Where the other sets come from.
        predictor: What the model does not say itself, and where it runs.
        max_length: Tokens a text is cut to; None takes what the model was trained with.
    """

    model: Checkpoint
    data: DataSettings
    evaluate: EvaluationSettings
    sets: SetSources = field(default_factory=SetSources)
    predictor: PredictorSettings = field(default_factory=PredictorSettings)
    max_length: int | None = None

    @classmethod
    def of(
        cls,
        tree: Mapping[str, Any],
        *,
        model: Checkpoint,
    ) -> EvaluationRequest:
        """Check nested settings: ``data``, ``evaluate``, ``sets`` and ``predictor``.

        Where no source is given, a run is evaluated on the data that it was trained with, read as
        it read them. Of another source it gives the encoding.

        Raises:
            SettingError: Where anything is wrong; it lists every fault.
        """
        faults = Faults(unknown("setting", name, PLACES) for name in tree if name not in PLACES)
        table = tree.get("data", {})
        if isinstance(table, Mapping):
            faults += [
                f"`data.{name}` says how to train and has no meaning here. Leave it out."
                for name in TRAINING_ONLY
                if name in table
            ]
        checked: dict[str, Any] = {"sets": section(SetSources, "sets", tree.get("sets", {}))}
        tree = _with_own_data(checked["sets"].completed(tree), model)
        classes: dict[str, type[BaseModel]] = {
            "data": DataSettings,
            "evaluate": EvaluationSettings,
            "predictor": PredictorSettings,
        }
        for name, settings in classes.items():
            with faults.caught():
                checked[name] = section(settings, name, tree.get(name, {}))
        if not faults:
            faults += checked["sets"].faults(checked["evaluate"])
        faults.refuse()
        length = checked["data"].max_length if "max_length" in table else None
        return cls(model=model, max_length=length, **checked)


def evaluate_model(
    request: EvaluationRequest,
    out: Path,
    *,
    notices: Iterable[str] = (),
    progress: Progress | None = None,
    answering: Callable[[Predictor], AbstractContextManager[Predictor]] = nullcontext,
) -> dict[str, Any]:
    """Evaluate one model into a folder of its own.

    Args:
        request: What to evaluate.
        out: The folder; an evaluation that was made under the same settings is kept.
        notices: Further notices, shown after those about rows that the model was trained on.
        progress: Hears how far it is.
        answering: Context that yields a predictor in place of the loaded one, for example one
            whose rows the machines of a cluster answer.

    Returns:
        The content of ``scores.json``.

    Raises:
        TemperError: Where model, data or settings do not fit, or the folder holds something else.
    """
    progress = progress or Progress()
    put_back(out)
    check_room(out, what="evaluation", held=lambda: stored_key(out) is not None)
    stored = stored_key(out)
    predictor = load_predictor(
        request.model,
        max_length=request.max_length,
        batch_size=request.evaluate.batch_size,
        precision=request.evaluate.precision,
        settings=request.predictor,
    )
    if isinstance(predictor, ClassifierPredictor) and predictor.precision == "bf16":
        progress.notice_all(bf16_notices(predictor.device))
    dev = load_evaluated(request.model, request.data, predictor=predictor)
    # Detectors learn from the rows that the model was trained on; a temperature must not.
    learns = request.sets.detects(request.evaluate) and request.sets.fit is None
    wanted = learns or request.sets.held_out is not None
    train, unread = trained_rows(request.model) if wanted else (None, ())
    sets = load_sets(
        request.sets,
        settings=request.data,
        evaluate=request.evaluate,
        dev=dev,
        train=train,
        trained=partial(trained_among, request.model),
        known=request.model.columns,
        classes=predictor.label_names,
        notices=(*unread, *_calibration_notices(request.model)),
    )
    progress.notice_all(sets.seen)
    progress.notice_all(notices)
    progress.notice(which_rows(request.model, request.data, dev, scored=len(sets.data.dev)))
    progress.info_all(filter(None, [read_as(dev)]))
    for name, rows in {**sets.data.shift, **sets.data.adversarial}.items():
        paired = rows.text_pair is not None
        check_pairs(request.model, request.model.paired, paired, rows=f"the rows of set {name!r}")
    in_memory = request.model.kind == "object"
    identity = predictor_identity(request.model, request.predictor)
    key = evaluation_key(identity, sets, request.evaluate, max_length=longest_row(predictor))
    data = request.data.model_copy(update={"max_length": longest_row(predictor)})
    asked = {
        "data": data.model_dump(mode="json", exclude={*TRAINING_ONLY, "train_split"}),
        "sets": request.sets.model_dump(mode="json"),
        "predictor": request.predictor.model_dump(
            mode="json", include={"gives", "label_names", "label_map"}
        ),
    }
    if stored is not None and stored != key:
        tables = {**asked, "evaluate": request.evaluate.model_dump(mode="json")}
        what = changed_since(out, request.model.name, tables)
        raise CheckpointError(
            f"{out} holds another evaluation: {what}. Give another --out, or remove that folder."
        )
    if stored is None or in_memory:
        regression = predictor.gives == "values"
        check_named_models(request.evaluate, regression=regression, reference=False)
        scored = {"dev": sets.data.dev, **sets.data.shift, **sets.data.adversarial}
        rows_of = {f"rows of set {name!r}": rows for name, rows in scored.items()}
        uncovered = unknown_in(predictor, request.model, rows_of)
        sets = replace(sets, notices=(*sets.notices, *uncovered))
        sets = with_reference(sets, request.model, predictor, request.evaluate)
        with answering(predictor) as measured:
            evaluation = measure(
                measured,
                sets,
                request.evaluate,
                out,
                model=request.model.name,
                key=key,
                run=request.model.key,
                asked=asked,
                progress=progress,
            )
        progress.notice_all(folded(each for each in evaluation.notices if each not in sets.seen))
    else:
        progress.notice(f"{out} holds this very evaluation already; it is kept.")
    return read_json(out / "scores.json")


def _with_own_data(tree: Mapping[str, Any], model: Checkpoint) -> Mapping[str, Any]:
    """Return settings with a run's own data, and how it read them, where no other are given.

    Other data may have the encoding of the run's, which is of files that are not UTF-8 alone.
    """
    table, trained = tree.get("data", {}), model.data
    if not isinstance(table, Mapping):
        return tree
    names = OF_THE_RUN if "source" in trained and "source" not in table else ("encoding",)
    known = {name: trained[name] for name in names if trained.get(name) is not None}
    return {**tree, "data": {**known, **table}} if known else tree


def _calibration_notices(model: Checkpoint) -> tuple[str, ...]:
    """Return what an evaluation, which measures a model as it is, says of a stored calibration."""
    if not model.is_calibrated:
        return ()
    return (
        f"{model} keeps a calibration, which `temper predict` applies. It is not applied here: "
        "scores are of the model's own answers.",
    )
