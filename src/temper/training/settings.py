"""Settings of the training loop; read without torch, so that options are known at once."""

from __future__ import annotations

import importlib.util
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from temper.errors import unknown
from temper.functional.label_names import GivenNames
from temper.settings import Device, LabelMap, Tree

KEEP_SHARE = 0.1
STOP: Final = "stop"
HALVE: Final = "halve"
OnOOM = Literal["stop", "halve"]
"""What becomes of a step that memory is not enough for."""

TRACKERS: dict[str, tuple[str, ...]] = {
    "azure_ml": ("azureml",),
    "clearml": ("clearml",),
    "codecarbon": ("codecarbon",),
    "comet_ml": ("comet_ml",),
    "dagshub": ("dagshub",),
    "dvclive": ("dvclive",),
    "flyte": ("flytekit",),
    "kubeflow": (),
    "mlflow": ("mlflow",),
    "neptune": ("neptune",),
    "swanlab": ("swanlab",),
    "tensorboard": ("tensorboard", "tensorboardX"),
    "trackio": ("trackio",),
    "wandb": ("wandb",),
}
"""Trackers that Transformers knows, and the packages of which each needs one."""

_WORDS = ("all", "none")
# What to install where it is not called like the package that it brings.
_INSTALLED_AS = {"azureml": "azureml-mlflow"}


def known_tracker(name: str) -> str:
    """Check the name of a tracker, and that it is installed.

    Args:
        name: A tracker of Transformers, ``all`` that are installed, or ``none``.

    Raises:
        ValueError: Where it is unknown or not installed; pydantic turns it into a fault.

    Example:
        >>> known_tracker("none")
        'none'
    """
    if name in _WORDS:
        return name
    if name not in TRACKERS:
        raise ValueError(unknown("tracker", name, (*TRACKERS, *_WORDS)))
    packages = TRACKERS[name]
    if packages and not any(map(importlib.util.find_spec, packages)):
        install = _INSTALLED_AS.get(packages[0], packages[0])
        raise ValueError(
            f"{name!r} is not installed. Run: pip install {install} (or leave it out)."
        )
    return name


# TOML and JSON know lists only, which strict checking would not take for tuples.
Names = Annotated[tuple[str, ...], Field(strict=False)]
Trackers = Annotated[
    tuple[Annotated[str, AfterValidator(known_tracker)], ...],
    Field(strict=False),
    BeforeValidator(lambda given: (given,) if isinstance(given, str) else given),
]
Rate = Annotated[float, Field(gt=0)]
Weights = Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(strict=False)]


class LoraSettings(BaseModel):
    """A LoRA adapter that is trained in place of the model's own weights.

    Args:
        rank: Rank of the update of each matrix, >= 1.
        alpha: The update is scaled by alpha / rank, > 0.
        dropout: Dropout rate before the update, in [0, 1).
        target_modules: Names of the linear layers that get one; None takes PEFT's choice for the
            architecture, ``"all-linear"`` every one below the head.
        merge: Whether the trained adapter is added to the model, so that the run is a plain
            checkpoint.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    rank: int = Field(8, ge=1)
    alpha: float = Field(16.0, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    target_modules: Literal["all-linear"] | Names | None = None
    merge: bool = False

    def adapter(self) -> dict[str, Any]:
        """Return the arguments of `peft.LoraConfig`, with its ``peft_type``."""
        names = self.target_modules
        return {
            "peft_type": "LORA",
            "r": self.rank,
            "lora_alpha": self.alpha,
            "lora_dropout": self.dropout,
            "target_modules": names if names is None or isinstance(names, str) else list(names),
        }


ALIASES: dict[str, str] = {
    "num_train_epochs": "epochs",
    "per_device_train_batch_size": "batch_size",
    "gradient_accumulation_steps": "accumulation",
    "lr_scheduler_type": "schedule",
    "bf16": "precision",
    "fp16": "precision",
}
"""Names of `transformers.TrainingArguments` for settings that have another name here."""


def without_alias(path: tuple[str, ...], value: Any) -> tuple[tuple[str, ...], Any]:
    """Return a setting of ``train`` under its own name, if it has its `TrainingArguments` name.

    Args:
        path: Dotted name, split.
        value: Its value. ``bf16=True`` and ``fp16=True`` become a ``precision``.

    Example:
        >>> without_alias(("train", "num_train_epochs"), 2)
        (('train', 'epochs'), 2)
        >>> without_alias(("train", "bf16"), True)
        (('train', 'precision'), 'bf16')
    """
    if len(path) != 2 or path[0] != "train" or (name := path[1]) not in ALIASES:
        return path, value
    if ALIASES[name] == "precision" and isinstance(value, bool):
        value = name if value else "fp32"
    return ("train", ALIASES[name]), value


class TrainSettings(BaseModel):
    """Settings of the training loop; the defaults suit an encoder of the BERT family.

    Args:
        epochs: Passes over the training rows, > 0; fractions are allowed.
        max_steps: Optimiser steps, >= 1; where given it replaces ``epochs``.
        batch_size: Rows of one micro-batch, >= 1; the processes of a run have equal shares of them.
        accumulation: Micro-batches per optimiser step, >= 1: ``batch_size`` 4 with 4 of them sees
            the rows of ``batch_size`` 16.
        learning_rate: Peak learning rate, > 0.
        weight_decay: Decoupled weight decay, >= 0; biases and norms are spared.
        warmup_ratio: Share of the steps over which the rate climbs from 0, in [0, 1).
        schedule: Course of the learning rate after the warm-up.
        max_grad_norm: l2 norm to clip the gradient to, >= 0; 0 switches clipping off.
        precision: ``fp32``, or mixed precision in ``bf16`` or ``fp16``.
        save_steps: Optimiser steps between two checkpoints, >= 1.
        logging_steps: Optimiser steps between two lines of ``metrics.jsonl``, >= 1.
        group_by_length: Put rows of similar length into one batch; each epoch still sees every row
            once.
        class_weights: Weight of each class in the task loss, in the order of the labels;
            ``"balanced"`` takes rows / (classes * rows of the class); None weighs all rows alike.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
        gradient_checkpointing: Recompute activations in the backward pass to save memory.
        report_to: Trackers that Transformers knows, for example ``wandb,mlflow,tensorboard``; these
            three get the scores of epochs and evaluations too.
        evaluate: ``epoch`` scores the dev rows after each epoch; ``off`` does not. Either way the
            weights are the same.
        keep: ``last`` keeps the weights of the last step; ``best`` those of the epoch that is best
            on rows which are taken out of the training rows for it. The dev rows choose nothing.
        keep_share: With ``keep="best"``, the share of the training rows that choose, in (0, 0.5].
        on_oom: What becomes of a step that memory is not enough for: ``stop`` stops the run;
            ``halve`` does it again with half as many rows at once, and all later steps so, which
            is a smaller ``batch_size`` with more ``accumulation``: a step has the same rows.
        fsdp: Share weights, gradients and the optimiser's states out between the processes of the
            run (FSDP2), where the model is too large for one; else each holds a whole copy.
        lora: A table of settings of a LoRA adapter; None trains all weights.
        peft: A table of arguments of any PEFT configuration that changes layers, with its
            ``peft_type`` (the content of an ``adapter_config.json``); in place of ``lora``.
        label_names: Class names in the order of the model's outputs, for a new head or for a
            checkpoint's head that has no names or other names than the data.
        label_map: Maps the checkpoint's class names to the data's, for example
            ``POSITIVE=pos,NEGATIVE=neg``.
        new_head: Draw a new classification head even if the checkpoint has one that fits.

    Example:
        >>> TrainSettings(epochs=1).batch_size
        16
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    epochs: float = Field(3.0, gt=0)
    max_steps: int | None = Field(None, ge=1)
    batch_size: int = Field(16, ge=1)
    accumulation: int = Field(1, ge=1)
    learning_rate: Rate = 2e-5
    weight_decay: float = Field(0.01, ge=0)
    warmup_ratio: float = Field(0.06, ge=0, lt=1)
    schedule: Literal["linear", "cosine", "constant_with_warmup", "constant"] = "linear"
    max_grad_norm: float = Field(1.0, ge=0)
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    save_steps: int = Field(200, ge=1)
    logging_steps: int = Field(10, ge=1)
    group_by_length: bool = True
    class_weights: Literal["balanced"] | Weights | None = None
    device: Device = "auto"
    gradient_checkpointing: bool = False
    report_to: Trackers = ()
    evaluate: Literal["epoch", "off"] = "epoch"
    keep: Literal["last", "best"] = "last"
    keep_share: float = Field(KEEP_SHARE, gt=0, le=0.5)
    on_oom: OnOOM = STOP
    fsdp: bool = False
    lora: Annotated[LoraSettings, Field(strict=False)] | None = None
    peft: dict[str, Any] | None = None
    label_names: Names | None = None
    label_map: LabelMap = Field(default_factory=dict)
    new_head: bool = False

    @property
    def given_names(self) -> GivenNames:
        """The class names that the user gives."""
        return GivenNames(self.label_names, self.label_map)

    @model_validator(mode="after")
    def _keep_share_is_read(self) -> Self:
        if self.keep == "last" and self.keep_share != KEEP_SHARE:
            raise ValueError(
                "`train.keep_share` is read with `train.keep` 'best' alone, and it is 'last'. Set "
                "train.keep=best, or leave it out."
            )
        return self

    @property
    def adapter(self) -> dict[str, Any] | None:
        """Arguments of the PEFT configuration of the adapter to train; None trains all weights."""
        return self.peft if self.lora is None else self.lora.adapter()

    @model_validator(mode="after")
    def _check_adapter(self) -> Self:
        if self.lora is not None and self.peft is not None:
            raise ValueError("`train.lora` and `train.peft` both name an adapter. Give one of them")
        if self.peft is not None and "peft_type" not in self.peft:
            raise ValueError("`train.peft` needs a `peft_type`, for example LORA or IA3")
        return self

    def deciding(self) -> Tree:
        """Return the settings that decide the trained weights; a key is made of them."""
        apart = {"device", "save_steps", "logging_steps", "report_to", "evaluate", "on_oom"}
        if self.keep == "last":
            apart |= {"keep", "keep_share"}
        apart |= {name for name in ("lora", "peft") if getattr(self, name) is None}
        # Left out if not set, so that the keys of earlier runs stay valid.
        named = ("label_names", "label_map", "new_head")
        apart |= {setting for setting in named if not getattr(self, setting)}
        if not self.fsdp:
            apart |= {"fsdp"}
        return self.model_dump(mode="json", exclude=apart)
