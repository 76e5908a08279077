"""Keywords of the Python functions, typed for editors, and the setting that each of them gives.

``eval_rows=`` of Python and ``--eval-rows`` of the command line are both ``data.eval_rows``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from pydantic import BaseModel

from temper.calibration.settings import CalibrationSettings
from temper.cluster.settings import ClusterSettings
from temper.data.settings import DataSettings
from temper.evaluation.settings import EvaluationSettings, PredictorSettings, SetSources
from temper.service.settings import ServiceSettings
from temper.training.settings import LoraSettings, TrainSettings

Many = str | Sequence[str]
"""Several names: a list, or a string with commas."""
Source = object
"""Data: a path, a Hub id, ``demo``, a DataFrame, a Dataset or a dict of columns."""
Sets = Mapping[str, Source] | Many
"""Name -> data, or strings ``NAME=PATH``."""
Table = Mapping[str, Any] | BaseModel
"""A table of settings: a dict or a settings object."""

TABLES: dict[str, type[BaseModel]] = {
    "data": DataSettings,
    "train": TrainSettings,
    "sets": SetSources,
    "predictor": PredictorSettings,
    "service": ServiceSettings,
    "calibrate": CalibrationSettings,
    "cluster": ClusterSettings,
    "evaluate": EvaluationSettings,
}
"""Name of a table -> class of its settings."""


class DataKeywords(TypedDict, total=False):
    """Settings of `temper.data.settings.DataSettings` that any command reads."""

    text_column: str | None
    text_pair_column: str | None
    label_column: str | None
    group_column: str | None
    encoding: str | None
    skip_bad_rows: bool
    kind: Literal["classification", "regression", "multi_label"] | None
    eval_split: str | None
    eval_rows: int | None
    max_length: int


class RowsKeywords(TypedDict, total=False):
    """Settings of `temper.data.settings.DataSettings` that only a training reads."""

    train_split: str
    dev_fraction: float
    rows: int | None
    drop_overlap: bool
    augment: Many
    augment_fraction: float
    unlabeled: Source
    unlabeled_rows: int | None
    stride: int | None
    pool: Literal["mean", "max"]
    max_windows: int


class LoopKeywords(TypedDict, total=False):
    """Settings of `temper.training.settings.TrainSettings`, and their names in Transformers."""

    epochs: float
    max_steps: int | None
    batch_size: int
    accumulation: int
    learning_rate: float
    weight_decay: float
    warmup_ratio: float
    schedule: Literal["linear", "cosine", "constant_with_warmup", "constant"]
    max_grad_norm: float
    precision: Literal["fp32", "bf16", "fp16"]
    save_steps: int
    logging_steps: int
    group_by_length: bool
    class_weights: Literal["balanced"] | Sequence[float] | None
    device: str
    gradient_checkpointing: bool
    report_to: Many
    keep: Literal["last", "best"]
    keep_fraction: float
    fsdp: bool
    label_names: Many | None
    label_map: Mapping[str, str] | Many
    new_head: bool
    num_train_epochs: float
    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    lr_scheduler_type: Literal["linear", "cosine", "constant_with_warmup", "constant"]
    bf16: bool
    fp16: bool


class SetKeywords(TypedDict, total=False):
    """Settings of `temper.evaluation.settings.SetSources`."""

    shift: Sets
    adversarial: Sets
    anomaly: Sets
    suite: str | None
    held_out: Source
    seen_rows: Literal["drop", "keep"]


class PredictorKeywords(TypedDict, total=False):
    """Settings of `temper.evaluation.settings.PredictorSettings`."""

    device: str | None
    gives: Literal["probabilities", "logits", "values"] | None
    label_names: Many | None
    label_map: Mapping[str, str] | Many
    trust: Many
    max_new_tokens: int | None
    stride: int | None
    pool: Literal["mean", "max"] | None
    max_windows: int | None


class _Named(TypedDict, total=False):
    """Keywords that select a benchmark task."""

    task: str | None
    data_root: str | Path | None


class _Trained(DataKeywords, RowsKeywords, LoopKeywords, total=False):
    """Keywords of every function that trains."""

    lora: bool | Mapping[str, Any] | LoraSettings
    peft: Any
    train: Table
    architecture: Mapping[str, Any]


class TrainKeywords(_Trained, total=False):
    """The keywords ``settings`` of `temper.train`."""

    task: Many | None
    tasks: Mapping[str, Source] | Sequence[str]
    data_root: str | Path | None
    seed: int


class CompareKeywords(_Named, _Trained, SetKeywords, total=False):
    """The keywords ``settings`` of `temper.compare` and `temper.tune`."""

    perspectives: Many
    evaluate: Table


class EvaluateKeywords(_Named, DataKeywords, SetKeywords, PredictorKeywords, total=False):
    """The keywords ``settings`` of `temper.evaluate`."""

    perspectives: Many
    fit: Source
    reference: str
    evaluate: Table


Paths = Mapping[str, tuple[str, ...]]
"""Keyword -> path of its setting in nested settings."""


def _paths(table: str, *groups: type) -> Paths:
    return {name: (table, name) for group in groups for name in group.__annotations__}


def _alone(*names: str) -> Paths:
    return {name: (name,) for name in names}


# Keywords that select the data only together: `temper.api.nested` joins them.
_DATA = {"data": ("data", "source"), **_alone("task", "data_root"), **_paths("data", DataKeywords)}
_PREDICTOR = _paths("predictor", PredictorKeywords)
_TRAINED = {
    **_DATA,
    **_paths("data", RowsKeywords),
    **_paths("train", LoopKeywords),
    "lora": ("train", "lora"),
    "peft": ("train", "peft"),
    **_alone("model", "train", "architecture"),
}
_MEASURED = {
    **_paths("sets", SetKeywords),
    "perspectives": ("evaluate", "perspectives"),
    "evaluate": ("evaluate",),
    "cluster": ("cluster", "address"),
}
TRAIN: Paths = {**_TRAINED, **_alone("seed", "method", "recipe", "tasks")}
COMPARE: Paths = {**_TRAINED, **_MEASURED}
EVALUATE: Paths = {
    **_DATA,
    **_MEASURED,
    **_PREDICTOR,
    "fit": ("sets", "fit"),
    "reference": ("evaluate", "representation", "reference"),
}
CALIBRATE: Paths = {
    **_DATA,
    **_PREDICTOR,
    "anomaly": ("sets", "anomaly"),
    **{name: ("evaluate", name) for name in ("batch_size", "precision")},
    **{name: ("calibrate", name) for name in CalibrationSettings.model_fields},
}
PREDICT: Paths = {
    **{
        name: ("data", name)
        for name in (
            "text_column", "text_pair_column", "encoding", "skip_bad_rows", "max_length",
        )
    },
    **_PREDICTOR,
}  # fmt: skip
EXPORT: Paths = {"data": ("data", "source"), **_paths("data", DataKeywords), **_PREDICTOR}
SERVE: Paths = {
    "max_length": ("data", "max_length"),
    **_PREDICTOR,
    **{name: ("service", name) for name in ServiceSettings.model_fields},
}
SETTINGS: Mapping[str, Paths] = {
    "fit": TRAIN, "train": TRAIN, "check-labels": TRAIN, "compare": COMPARE, "tune": COMPARE,
    "evaluate": EVALUATE, "calibrate": CALIBRATE, "predict": PREDICT, "serve": SERVE,
    "export": EXPORT,
}  # fmt: skip
"""Command -> the settings that its ``--set`` accepts: keyword -> path."""
