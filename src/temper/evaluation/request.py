"""A checked request for an evaluation: model, rows and settings; importable without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from temper.checkpoints.checkpoint import Checkpoint
from temper.checkpoints.folder import differences
from temper.data.examples import Examples
from temper.data.labels import label_kind
from temper.data.settings import TRAINING_ONLY, UNLABELED, DataSettings
from temper.data.sources import (
    is_taken_whole,
    load_examples,
    load_splits,
    load_task_dev,
    with_configuration,
)
from temper.errors import DataError, SettingError, unknown
from temper.evaluation.alignment import align, without_unknown
from temper.evaluation.predictor import KINDS, Predictor
from temper.evaluation.settings import EvaluationSettings, PredictorSettings, SetSources
from temper.settings import Faults, section

# Settings that may be given for a run's own data, because they do not change how it is read. A
# `kind` that the model predicts equals the run's, whether the run's was given or guessed.
FREE = {"source", "task", "kind", "eval_rows", "eval_split", "seed", "max_length", "group_column"}
KEYS = ("data", "evaluate", "sets", "predictor")
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
"""Data settings of a run that an evaluation on the run's own data reuses."""


@dataclass(frozen=True)
class EvaluationRequest:
    """The model to evaluate, its data and the settings.

    ``max_length`` is the maximum number of tokens of a text; None uses that of the training.
    """

    model: Checkpoint
    data: DataSettings
    evaluate: EvaluationSettings
    sets: SetSources = field(default_factory=SetSources)
    predictor: PredictorSettings = field(default_factory=PredictorSettings)
    max_length: int | None = None

    @classmethod
    def of(cls, tree: Mapping[str, Any], *, model: Checkpoint) -> EvaluationRequest:
        """Check nested settings: ``data``, ``evaluate``, ``sets`` and ``predictor``.

        Without a source, a run is evaluated on its own data, read with the run's settings. For
        another source only the run's encoding is reused.

        Raises:
            SettingError: A setting is wrong; the message lists all faults.
        """
        faults = Faults(unknown("setting", name, KEYS) for name in tree if name not in KEYS)
        table = tree.get("data", {})
        if isinstance(table, Mapping):
            faults += [
                f"`data.{name}` is a training setting and has no effect here. "
                + ("Set data.eval_rows." if name == "rows" else "Leave it out.")
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

    def load(self) -> Predictor:
        from temper.evaluation.loading import load_predictor

        return load_predictor(
            self.model,
            max_length=self.max_length,
            batch_size=self.evaluate.batch_size,
            precision=self.evaluate.precision,
            settings=self.predictor,
        )

    def check_rows(self) -> None:
        """Raise on faulty rows before the model is loaded; has no effect unless it is a run."""
        _ = self._early_rows

    @cached_property
    def _early_rows(self) -> Examples | None:
        # Cached for `rows`. Kind and labels of models that are not runs are unknown here.
        task = (self.model.run or {}).get("task") or {}
        if label_kind(task.get("kind", "")) is None:
            return None
        rows = _read(self.model, self.data, kind=task["kind"], labeled=True)
        given = self.predictor.model_dump(include={"label_names", "label_map"}).values()
        if task.get("labels") and not self.data.skip_bad_rows and not any(given):
            align(replace(rows, name="dev"), task["labels"])
        return rows

    def rows(self, predictor: Predictor, *, labeled: bool | None = True) -> Examples:
        """Load the rows that a model is evaluated on, as the set ``dev``.

        If the source is the run's own data, they are the run's validation rows, read with the run's
        settings. Of other sources, a single file or a named split is used whole, else the
        evaluation split. Their columns may have the names of the run's columns.

        ``labeled``: whether the rows need labels; None accepts both.

        Raises:
            DataError: The data is wrong.
            SettingError: Settings would read the run's own rows differently, or ``kind`` is not
                the kind that the model predicts.
        """
        settings, kind = self.data, KINDS[predictor.gives]
        examples = self._early_rows if labeled else None
        if examples is None:
            examples = _read(self.model, settings, kind=kind, labeled=labeled)
        if settings.skip_bad_rows:
            examples = without_unknown(examples, predictor.label_names)
        paired = examples.text_pair is not None
        check_pairs(self.model, self.model.paired, paired, rows=f"the rows of {settings.source}")
        if settings.eval_rows is not None:
            examples = examples.sample(settings.eval_rows, seed=settings.seed)
        return replace(examples, name="dev")


def which_rows(model: Checkpoint, settings: DataSettings, rows: Examples, *, scored: int) -> str:
    """Return a sentence on the rows that are evaluated, and how they were chosen."""
    trained = model.data
    split = rows.source.get("split")
    drawn = f", drawn with seed {settings.seed}" if len(rows) == settings.eval_rows else ""
    if not _is_run_data(trained, settings):
        # The only split of a file has no name that the user knows.
        alone = settings.eval_split is None and Path(settings.source).is_file()
        among = "" if split is None or alone else f", split {split!r}"
        return f"{scored:,} rows of {settings.source}{among}{drawn} are evaluated."
    carved = split == trained.get("train_split", "train")
    among = "held back from training" if carved else f"split {split!r}"
    return (
        f"{scored:,} rows of {settings.source}{drawn} are evaluated: the validation rows of "
        f"{model}, {among}."
    )


def check_pairs(model: object, trained: bool | None, given: bool, *, rows: str) -> None:
    """Raise if a model of pairs gets single texts, or vice versa.

    ``trained`` and ``given``: whether the model and the data have pairs; None if unknown.
    """
    if trained is None or trained is given:
        return
    if trained:
        raise DataError(
            f"{model} was trained on pairs of texts, and {rows} lack the second text. Pass it as "
            "`text_pairs`, with --text-pair, or its column as `text_pair_column`."
        )
    raise DataError(
        f"{model} was trained on single texts, and {rows} have a second text. Leave out "
        "`text_pairs` or --text-pair, or name the only text column with --text-column."
    )


def _read(
    model: Checkpoint, settings: DataSettings, *, kind: str, labeled: bool | None
) -> Examples:
    of_column = label_kind(kind)
    if settings.kind not in (None, of_column):
        raise SettingError(
            f"`data.kind` is {settings.kind!r}, but {model} predicts {kind}. Leave it out."
        )
    trained, known = model.data, model.columns
    if _is_run_data(trained, settings):
        whole = {"eval_rows": None, **dict.fromkeys(UNLABELED)}
        if settings.group_column is not None:
            whole["group_column"] = settings.group_column
        run_data = DataSettings.model_validate({**trained, **whole})
        _check_run_data(model, settings, run_data)
        return load_splits(run_data).dev
    if settings.task is not None:
        return load_task_dev(settings, known=known)
    if not is_taken_whole(settings):
        return load_splits(settings.model_copy(update={"eval_rows": None}), known=known).dev
    return load_examples(
        with_configuration(settings),
        split=settings.eval_split,
        columns=settings.columns,
        kind=of_column,
        labeled=labeled,
        reading=settings.reading,
        known=known,
    )


def _is_run_data(trained: Mapping[str, Any], settings: DataSettings) -> bool:
    """Return whether the requested rows are the validation rows of the run, given its data."""
    if "source" not in trained or settings.eval_split is not None:
        return False
    first, second = Path(str(trained["source"])), Path(settings.source)
    if first.exists() and second.exists():
        return first.resolve() == second.resolve()
    return str(trained["source"]) == settings.source


def _check_run_data(model: Checkpoint, settings: DataSettings, run_data: DataSettings) -> None:
    """Raise if given settings differ from the run's, with which its rows are read."""
    given = settings.model_fields_set - FREE
    changed = differences(
        {"data": run_data.model_dump(include=given)}, {"data": settings.model_dump(include=given)}
    )
    if changed:
        raise SettingError(
            f"{model} was trained on {settings.source}, and its validation rows are read with the "
            f"run's settings, but {'; '.join(changed)}. Leave these settings out, or name "
            "the split to read with them: --data SOURCE@SPLIT."
        )


def _with_own_data(tree: Mapping[str, Any], model: Checkpoint) -> Mapping[str, Any]:
    """Return the settings, with the run's data settings added if no source is given."""
    table, trained = tree.get("data", {}), model.data
    if not isinstance(table, Mapping):
        return tree
    # The encoding is set only for files that are not UTF-8.
    names = OF_THE_RUN if "source" in trained and "source" not in table else ("encoding",)
    known = {name: trained[name] for name in names if trained.get(name) is not None}
    return {**tree, "data": {**known, **table}} if known else tree
