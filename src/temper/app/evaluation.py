"""One evaluation as ``temper evaluate`` asks for it: check, load, measure, write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from temper.app.judge import evaluation_key, judge, judging_key, load_evaluated, which_rows
from temper.app.named_models import check_named_models
from temper.app.predictors import (
    Declared,
    load_predictor,
    longest_row,
    predictor_identity,
    run_key_of,
    trained_columns,
    trained_settings,
)
from temper.app.reference import with_reference
from temper.app.seen import said_of_trained
from temper.app.sets import load_sets, trained_rows
from temper.app.settings import SetSources
from temper.app.temperature import said_of_stored
from temper.data.augmentation_settings import AUGMENTATION
from temper.data.settings import UNLABELLED, DataSettings
from temper.errors import CheckpointError, SettingError, unknown
from temper.evaluation.settings import EvaluationSettings
from temper.report.wording import folded
from temper.training.assignments import section
from temper.training.checkpoint_folder import check_room, read_json
from temper.training.progress import Progress

PLACES = ("data", "evaluate")
OWN = (
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
# They say how to train, so that an evaluation would have to ignore them.
TRAINING_ONLY = ("rows", "drop_overlap", *UNLABELLED, *AUGMENTATION)


@dataclass(frozen=True)
class Judging:
    """What to evaluate, and on what.

    Args:
        model: Whatever `temper.app.predictors.load_predictor` takes.
        data: The evaluated source.
        evaluate: What is measured.
        sets: Where the other sets come from.
        max_length: Tokens a text is cut to; None takes what the model was trained with.
        device: Where it runs; None takes a GPU where there is one.
        declared: What the model does not say itself.
    """

    model: str
    data: DataSettings
    evaluate: EvaluationSettings
    sets: SetSources = field(default_factory=SetSources)
    max_length: int | None = None
    device: str | None = None
    declared: Declared = field(default_factory=Declared)

    @classmethod
    def of(
        cls,
        tree: Mapping[str, Any],
        *,
        model: str,
        sets: SetSources | None = None,
        device: str | None = None,
        declared: Declared | None = None,
    ) -> Judging:
        """Check nested settings ``{"data": {...}, "evaluate": {...}}``.

        Where no source is given, a run is evaluated on the data that it was trained with, read as
        it read them. Of another source it gives the encoding.

        Raises:
            SettingError: Where anything is wrong; it lists every fault.
        """
        found = [unknown("setting", name, PLACES) for name in tree if name not in PLACES]
        table = tree.get("data", {})
        if isinstance(table, Mapping):
            found += [
                f"`data.{name}` says how to train and has no meaning here. Leave it out."
                for name in TRAINING_ONLY
                if name in table
            ]
        sets = sets or SetSources()
        tree = _with_own_data(sets.completed(tree), model)
        checked: dict[str, Any] = {}
        classes: dict[str, type[BaseModel]] = {
            "data": DataSettings,
            "evaluate": EvaluationSettings,
        }
        for name, settings in classes.items():
            try:
                checked[name] = section(settings, name, tree.get(name, {}))
            except SettingError as error:
                found.append(str(error))
        if not found:
            found = sets.faults(checked["evaluate"])
        if found:
            raise SettingError("\n".join(found))
        return cls(
            model=model,
            sets=sets,
            max_length=checked["data"].max_length if "max_length" in table else None,
            device=device,
            declared=declared or Declared(),
            **checked,
        )


def judge_model(asked: Judging, out: Path, *, progress: Progress | None = None) -> dict[str, Any]:
    """Evaluate one model into a folder of its own.

    Args:
        asked: What to evaluate.
        out: The folder; an evaluation that was made under the same settings is kept.
        progress: Hears how far it is.

    Returns:
        The content of ``scores.json``.

    Raises:
        TemperError: Where model, data or settings do not fit, or the folder holds something else.
    """
    progress = progress or Progress()
    held = _held(out)
    predictor = load_predictor(
        asked.model,
        max_length=asked.max_length,
        batch_size=asked.evaluate.batch_size,
        device=asked.device,
        declared=asked.declared,
    )
    dev = load_evaluated(asked.model, asked.data, predictor=predictor)
    progress.notice(which_rows(asked.model, asked.data, dev))
    # Detectors learn from the rows that the model was trained on; a temperature must not.
    learns = asked.sets.detects(asked.evaluate) and asked.sets.fit is None
    wanted = learns or asked.sets.held_out is not None
    train, notices = trained_rows(asked.model) if wanted else (None, ())
    sets = load_sets(
        asked.sets,
        settings=asked.data,
        evaluate=asked.evaluate,
        dev=dev,
        train=train,
        tells_trained=False,
        known=trained_columns(asked.model),
        notices=(*notices, *said_of_stored(asked.model)),
    )
    identity = predictor_identity(asked.model, asked.declared)
    key = judging_key(identity, sets, asked.evaluate, max_length=longest_row(predictor))
    if held is not None and held != key:
        raise CheckpointError(
            f"{out} holds an evaluation of another model, other data or other settings. "
            "Give another --out."
        )
    if held is None:
        regression = predictor.gives == "values"
        check_named_models(asked.evaluate, regression=regression, reference=False)
        scored = {"dev": dev, **sets.data.shift, **sets.data.adversarial}
        told = said_of_trained(asked.model, scored)
        sets = replace(sets, notices=(*sets.notices, *told))
        sets = with_reference(sets, asked.model, predictor, asked.evaluate)
        found = judge(
            predictor,
            sets,
            asked.evaluate,
            out,
            model=asked.model,
            key=key,
            run=run_key_of(asked.model),
            progress=progress,
        )
        for text in folded(found.notices):
            progress.notice(text)
    else:
        progress.notice(f"{out} holds this very evaluation already; it is kept.")
    return read_json(out / "scores.json")


def _with_own_data(tree: Mapping[str, Any], model: str) -> Mapping[str, Any]:
    """Return settings with a run's own data, and how it read them, where no other are given.

    Other data may have the encoding of the run's, which is of files that are not UTF-8 alone.
    """
    table, own = tree.get("data", {}), trained_settings(model).get("data", {})
    if not isinstance(table, Mapping):
        return tree
    names = OWN if "source" in own and "source" not in table else ("encoding",)
    known = {name: own[name] for name in names if own.get(name) is not None}
    return {**tree, "data": {**known, **table}} if known else tree


def _held(out: Path) -> str | None:
    held = evaluation_key(out)
    check_room(out, what="evaluation", held=held is not None)
    return held
