"""Train one run in its folder: check everything, resume what was stopped, publish what is finished."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from temper import methods
from temper.data.encode import Collator, EncodedExamples, encode
from temper.data.examples import Examples, Splits, label_counts
from temper.data.sources import load_splits
from temper.data.tasks import default_metric
from temper.errors import CheckpointError, SettingError
from temper.models.hf import MODELS, load_classifier
from temper.training.checkpoint_folder import RunFolder, differences, make_folder
from temper.training.config import RunConfig
from temper.training.progress import Progress
from temper.training.trainer import RobustTrainer, training_arguments

SCHEMA = 1
CHUNK = 1 << 20
MODEL_FILES = {".safetensors", ".bin", ".json", ".txt", ".model"}
# What Temper writes beside a model's files does not decide what its weights are.
RECORDS = {"run.json", "scores.json", "table.json", "study.json"}


def train(
    config: RunConfig,
    out: Path | str,
    *,
    resume: bool = True,
    splits: Splits | None = None,
    progress: Progress | None = None,
    callbacks: Sequence[Any] = (),
) -> Path:
    """Fine-tune one model; the folder is as docs/formats.md says.

    A finished run with the same key is left as it is. A stopped one with the same key goes on from its
    last checkpoint, to the weights that it would have reached without the stop.

    Args:
        config: The checked settings.
        out: The run's folder; made once the data, the labels, the model and the method are known to fit.
        resume: Whether a stopped run goes on; where False it starts anew.
        splits: The data, where the caller has loaded ``config.data`` already.
        progress: Hears of steps and notices.
        callbacks: Further callbacks of Transformers' Trainer.

    Returns:
        The folder, now a plain checkpoint with its record.

    Raises:
        TemperError: Where data, labels, model or method do not fit, the folder holds another run, or a
            loss is not finite.
        KeyboardInterrupt: On Ctrl-C, after ``run.json`` was given the status ``stopped``.
    """
    progress = progress or Progress()
    folder = RunFolder(Path(out))
    found = folder.record()
    splits = splits or load_splits(config.data)
    for text in splits.notices:
        progress.notice(text)
    key = run_key(config, splits)
    if found is not None:
        _check_same(folder, found, config, key)
        if found.get("status") == "finished":
            progress.notice(f"{folder.path} is finished already with these settings; it is kept.")
            return folder.path
    begun = _Begun(config, folder, key, splits, progress, prepare(config, splits))
    begun.go(found if resume else None, callbacks)
    return folder.path


@dataclass(frozen=True)
class Prepared:
    """What a run needs before its first step.

    Args:
        model: The classifier, its head freshly drawn from the seed.
        tokenizer: Its tokenizer.
        method: The method, built from its settings.
        rows: The encoded training rows.
        class_weights: Weight of each class, None where all weigh alike.
    """

    model: Any
    tokenizer: Any
    method: Any
    rows: EncodedExamples
    class_weights: list[float] | None


def prepare(config: RunConfig, splits: Splits) -> Prepared:
    """Load and build all that a run needs, so that whatever is wrong shows before anything is written.

    Args:
        config: The checked settings.
        splits: The data.

    Returns:
        Model, tokenizer, method and encoded rows.

    Raises:
        TemperError: Where something does not fit.
    """
    method = methods.build(config.method_config())
    weights = class_weights(config.train.class_weights, splits.train)
    regression = splits.train.kind == "regression"
    model, tokenizer = load_classifier(
        config.model,
        labels=None if regression else label_names(splits.train),
        regression=regression,
        device="cpu",
        seed=config.seed,
    )
    rows = encode(splits.train, tokenizer, max_length=config.data.max_length, row_index=True)
    return Prepared(model, tokenizer, method, rows, weights)


def label_names(examples: Examples) -> list[str]:
    """Return the names of the classes; those without names get Transformers' own ``LABEL_0`` ..."""
    if examples.label_names is not None:
        return list(examples.label_names)
    return [f"LABEL_{index}" for index in range(examples.classes)]


def class_weights(setting: Any, train_rows: Examples) -> list[float] | None:
    """Resolve ``train.class_weights``.

    Args:
        setting: ``"balanced"``, numbers in the order of the labels, or None.
        train_rows: The training rows.

    Returns:
        One weight per class, or None. ``balanced`` is rows / (classes * rows of the class).

    Raises:
        SettingError: For a regression, and for another number of weights than classes.
    """
    if setting is None:
        return None
    if train_rows.kind != "classification":
        raise SettingError("`train.class_weights` needs classes, but the labels are numbers. Leave it out.")
    classes = len(label_names(train_rows))
    if setting == "balanced":
        counts = label_counts(train_rows)
        return [len(train_rows) / (len(counts) * counts[index]) if index in counts else 1.0 for index in range(classes)]
    weights = [float(weight) for weight in setting]
    if len(weights) != classes:
        raise SettingError(
            f"`train.class_weights` must be {classes} numbers, one per label in the order "
            f"{', '.join(label_names(train_rows))}, got {weights}."
        )
    return weights


def run_key(config: RunConfig, splits: Splits) -> str:
    """Return the key of a run on its loaded data; see `RunConfig.key`."""
    return config.key(
        model=model_identity(config.model), train_hash=splits.train.hash, dev_hash=splits.dev.hash
    )


def model_identity(name: str) -> str:
    """Say which weights a model's name stands for, so that a key does not outlive them.

    Args:
        name: Hub id, folder, or short name.

    Returns:
        A hash of the files for a folder, the name itself for anything else.
    """
    folder = Path(name)
    if not folder.is_dir():
        return name
    state = hashlib.blake2b(digest_size=16)
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.suffix in MODEL_FILES and file.name not in RECORDS:
            state.update(repr((file.name, file.stat().st_size)).encode())
            with file.open("rb") as stream:
                while chunk := stream.read(CHUNK):
                    state.update(chunk)
    return state.hexdigest()


def _check_same(folder: RunFolder, found: dict[str, Any], config: RunConfig, key: str) -> None:
    if found.get("key") == key:
        return
    changed = differences(
        {"model": found.get("model"), "seed": found.get("seed"), **found.get("settings", {})},
        {"model": config.model, "seed": config.seed, **config.settings()},
    )
    what = "; ".join(changed) if changed else "the rows of the data or the model's weights changed"
    raise CheckpointError(
        f"{folder.path} holds a run with other settings: {what}. Give another --out, or remove that folder."
    )


class _Begun:
    """One run between its checks and its end."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        key: str,
        splits: Splits,
        progress: Progress,
        prepared: Prepared,
    ) -> None:
        self.config, self.folder, self.key = config, folder, key
        self.splits, self.progress, self.prepared = splits, progress, prepared
        self.recorder = Recorder(self)

    def go(self, found: dict[str, Any] | None, callbacks: Sequence[Any]) -> None:
        made = make_folder(self.folder.path)
        try:
            self._train(found, callbacks)
        except (TemperError, KeyboardInterrupt):
            if made and self.recorder.steps == 0:
                self.folder.clear()
                remove_empty(made)
            else:
                self.folder.write_record(self.record("stopped"))
            raise

    def _train(self, found: dict[str, Any] | None, callbacks: Sequence[Any]) -> None:
        if found is None:
            self.folder.clear()
        checkpoint = self.folder.last_checkpoint()
        prepared = self.prepared
        trainer = RobustTrainer()
        self.folder.cut_metrics(checkpoint_step)
        self.folder.write_record(self.record("running"))
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        self._publish(trainer)
