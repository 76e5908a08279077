"""Load a model and the sets to judge it on, and measure it, for ``compare`` and ``evaluate``."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from temper.data.examples import Examples
from temper.data.folders import split_files
from temper.data.labels import LabelKind
from temper.data.settings import UNLABELLED
from temper.data.sources import DataSettings, load_examples, load_splits
from temper.errors import SettingError
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.run import Evaluation, EvaluationData, evaluate, write
from temper.evaluation.settings import EvaluationSettings
from temper.models.hf import load_classifier
from temper.study.store import publish_evaluation
from temper.training.checkpoint_folder import make_folder, read_json
from temper.training.config import digest, known_device
from temper.training.progress import Progress

DEFAULT_LENGTH = 128


def load_predictor(
    model: str,
    *,
    max_length: int | None = None,
    batch_size: int = 32,
    device: str | None = None,
) -> ClassifierPredictor:
    """Load a checkpoint to predict with.

    Args:
        model: Folder of a run or of any Transformers checkpoint, or a Hub id.
        max_length: Tokens a text is cut to; None takes what the run was trained with, else 128.
        batch_size: Rows of a forward pass, >= 1.
        device: Where it runs; None takes a GPU where there is one.

    Returns:
        The predictor.

    Raises:
        ModelError: Where the model cannot be loaded.
        SettingError: Where ``max_length`` or ``device`` is wrong.
    """
    if max_length is None:
        max_length = trained_settings(model).get("data", {}).get("max_length", DEFAULT_LENGTH)
    if max_length < 4:
        raise SettingError(f"`max_length` must be >= 4, got {max_length}.")
    try:
        known_device(device or "auto")
    except ValueError as error:
        raise SettingError(f"`device` {error}, got {device!r}.") from error
    network, tokenizer = load_classifier(model, device=device or "auto")
    return ClassifierPredictor(network, tokenizer, max_length=max_length, batch_size=batch_size)


def trained_settings(model: str) -> Mapping[str, Any]:
    """Return the settings that a run was trained with, or a soup's runs; else nothing."""
    for name in ("run.json", "soup.json"):
        file = Path(model) / name
        if file.exists():
            found: Mapping[str, Any] = read_json(file).get("settings", {})
            return found
    return {}


def load_evaluated(
    model: str, settings: DataSettings, *, predictor: ClassifierPredictor
) -> Examples:
    """Load the rows that a model is evaluated on.

    The source that a run was trained on gives the run's own dev rows, carved ones included, so that
    no training row is scored. A single file, or a split that is named, is taken whole; of other
    sources the evaluation split is taken.

    Args:
        model: Folder or Hub id of the model.
        settings: The source, its columns and the number of rows.
        predictor: The loaded model.

    Returns:
        The set, named ``dev``.

    Raises:
        DataError: Where the data is wrong.
    """
    trained = trained_settings(model).get("data", {})
    if (
        # Of a soup of runs with different data only the longest row is known.
        "source" in trained
        and _same_source(str(trained["source"]), settings.source)
        and settings.eval_split is None
    ):
        whole = {"eval_rows": None, **dict.fromkeys(UNLABELLED)}
        examples = load_splits(DataSettings.model_validate({**trained, **whole})).dev
    elif _taken_whole(settings):
        regression = predictor.gives == "values"
        examples = load_examples(
            settings.source,
            split=settings.eval_split,
            columns=settings.columns,
            kind="regression" if regression else "classification",
        )
    else:
        examples = load_splits(settings.model_copy(update={"eval_rows": None})).dev
    if settings.eval_rows is not None:
        examples = examples.sample(settings.eval_rows, seed=settings.seed)
    return replace(examples, name="dev")


def load_sets(
    shift: Mapping[str, str], anomaly: Mapping[str, str], *, settings: DataSettings, dev: Examples
) -> tuple[dict[str, Examples], dict[str, Examples]]:
    """Load the sets under shift and of anomalies.

    Their columns are found by the usual names, because they rarely share the names of the task's
    files.

    Args:
        shift: Name to source.
        anomaly: Name to source; labels are not read.
        settings: The task's data: ``eval_rows`` bounds every set.
        dev: The evaluated rows, which say what the labels are.

    Returns:
        Both kinds of sets by name.

    Raises:
        DataError: Where a set is wrong.
    """

    def cut(examples: Examples, name: str) -> Examples:
        if settings.eval_rows is not None:
            examples = examples.sample(settings.eval_rows, seed=settings.seed)
        return replace(examples, name=name)

    kind: LabelKind = "regression" if dev.kind == "regression" else "classification"
    shifted = {name: cut(load_examples(source, kind=kind), name) for name, source in shift.items()}
    strange = {
        name: cut(load_examples(source, labelled=False), name) for name, source in anomaly.items()
    }
    return shifted, strange


def judge(
    predictor: ClassifierPredictor,
    data: EvaluationData,
    settings: EvaluationSettings,
    out: Path,
    *,
    model: str,
    key: str,
    progress: Progress | None = None,
) -> Evaluation:
    """Measure a model and write the evaluation in one go.

    Args:
        predictor: The loaded model.
        data: The sets.
        settings: What is measured.
        out: Folder of the evaluation; an older one in its place is replaced once the new one is
            whole.
        model: Name of the model, for the record.
        key: Recognises the evaluation later on.
        progress: Hears how far it is.

    Returns:
        Rows and scores.
    """
    told = (progress or Progress()).evaluation
    evaluation = evaluate(predictor, data, settings, model=model, progress=told)
    make_folder(out.parent)
    staged = out.with_name(f".{out.name}.writing")
    try:
        if staged.exists():
            shutil.rmtree(staged)
        write(evaluation, staged)
        publish_evaluation(staged, out, {"key": key, "evaluate": settings.model_dump(mode="json")})
    finally:
        if staged.exists():
            shutil.rmtree(staged)
    return evaluation


def judging_key(
    model: str, data: EvaluationData, settings: EvaluationSettings, *, max_length: int
) -> str:
    """Hash all that decides an evaluation's outcome.

    Args:
        model: What identifies the weights.
        data: The sets.
        settings: What is measured; the batch size decides nothing.
        max_length: Tokens a text is cut to.

    Returns:
        12 hexadecimal digits.
    """
    return digest(
        {
            "model": model,
            "evaluate": settings.model_dump(mode="json", exclude={"batch_size"}),
            "dev": data.dev.hash,
            "shift": {name: examples.hash for name, examples in data.shift.items()},
            "anomaly": {name: examples.hash for name, examples in data.anomaly.items()},
            "max_length": max_length,
        }
    )


def _same_source(first: str, second: str) -> bool:
    if Path(first).exists() and Path(second).exists():
        return Path(first).resolve() == Path(second).resolve()
    return first == second


def _taken_whole(settings: DataSettings) -> bool:
    path = Path(settings.source).expanduser()
    if settings.eval_split is not None or "@" in settings.source or path.is_file():
        return True
    return path.is_dir() and settings.train_split not in split_files(path)
