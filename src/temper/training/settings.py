"""Settings of the training loop; read without torch, so that options are known at once."""

from __future__ import annotations

import importlib.util
from typing import Annotated, Any, Literal, Self

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

KEEP_FRACTION = 0.1
"""Default fraction of the training rows that choose the epoch, with `keep=best`."""

TRACKERS = (
    "azure_ml", "clearml", "codecarbon", "comet_ml", "dagshub", "dvclive", "flyte", "kubeflow",
    "mlflow", "neptune", "swanlab", "tensorboard", "trackio", "wandb",
)  # fmt: skip
"""Trackers that Transformers knows."""

_WORDS = ("all", "none")
# Trackers whose package has a different name.
_PACKAGES: dict[str, tuple[str, ...]] = {
    "azure_ml": ("azureml",),
    "flyte": ("flytekit",),
    "kubeflow": (),
    "tensorboard": ("tensorboard", "tensorboardX"),
}


def is_installed(tracker: str) -> bool:
    packages = _PACKAGES.get(tracker, (tracker,))
    return not packages or any(map(importlib.util.find_spec, packages))


def known_tracker(name: str) -> str:
    """Check that a tracker of Transformers, ``all`` or ``none`` is known and installed.

    Raises:
        ValueError: If it is not; pydantic turns it into a fault.

    Example:
        >>> known_tracker("none")
        'none'
    """
    if name in _WORDS:
        return name
    if name not in TRACKERS:
        raise ValueError(unknown("tracker", name, (*TRACKERS, *_WORDS)))
    if not is_installed(name):
        install = {"azure_ml": "azureml-mlflow", "flyte": "flytekit"}.get(name, name)
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
Weights = Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(strict=False)]


class LoraSettings(BaseModel):
    """Settings of a LoRA adapter, trained instead of all weights of the model."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    rank: int = Field(8, ge=1, description="Rank of the low-rank update of each weight matrix.")
    alpha: float = Field(16.0, gt=0, description="The update is scaled by alpha / rank.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout rate of the update's input.")
    target_modules: Literal["all-linear"] | Names | None = Field(
        default=None,
        description="Names of the linear layers to adapt; `all-linear` adapts every one below the "
        "head. Default: PEFT's choice for the architecture.",
    )
    merge: bool = Field(
        default=False,
        description="Merge the trained adapter into the model, so that the run is a plain "
        "checkpoint.",
    )

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
"""Name in `transformers.TrainingArguments` -> name of the same setting here."""


def without_alias(path: tuple[str, ...], value: Any) -> tuple[tuple[str, ...], Any]:
    """Return a setting of ``train`` under its own name, if it has its `TrainingArguments` name.

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

    Example:
        >>> TrainSettings(epochs=1).batch_size
        16
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    epochs: float = Field(
        3.0, gt=0, description="Passes over the training rows; fractions are allowed."
    )
    max_steps: int | None = Field(None, ge=1, description="Optimizer steps, instead of `epochs`.")
    batch_size: int = Field(
        16,
        ge=1,
        description="Rows of one micro-batch, divided equally among the processes of a run.",
    )
    accumulation: int = Field(
        1,
        ge=1,
        description="Micro-batches per optimizer step; a step has `batch_size` * `accumulation` "
        "rows.",
    )
    learning_rate: float = Field(2e-5, gt=0, description="Peak learning rate.")
    weight_decay: float = Field(
        0.01, ge=0, description="Decoupled weight decay; not applied to biases and norms."
    )
    warmup_ratio: float = Field(
        0.06, ge=0, lt=1, description="Length of the linear warm-up, as a fraction of all steps."
    )
    schedule: Literal["linear", "cosine", "constant_with_warmup", "constant"] = Field(
        default="linear",
        description="Learning rate schedule. All but `constant` begin with a linear warm-up.",
    )
    max_grad_norm: float = Field(
        1.0, ge=0, description="l2 norm to clip the gradient to; 0 disables clipping."
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        default="fp32", description="`fp32`, or mixed precision in `bf16` or `fp16`."
    )
    save_steps: int = Field(200, ge=1, description="Optimizer steps between two checkpoints.")
    logging_steps: int = Field(
        10, ge=1, description="Optimizer steps between two lines of `metrics.jsonl`."
    )
    group_by_length: bool = Field(
        default=True,
        description="Group rows of similar length into batches; each epoch still has every row "
        "once.",
    )
    class_weights: Literal["balanced"] | Weights | None = Field(
        default=None,
        description="Weight of each class in the task loss, in the order of the labels; "
        "`balanced` is rows / (classes * rows of the class), or with several labels per text rows "
        "without the label / rows with it. Default: equal weights.",
    )
    device: Device = Field(
        default="auto",
        description="`auto`, `cpu`, `cuda` or `mps`; `CUDA_VISIBLE_DEVICES` selects a GPU.",
    )
    gradient_checkpointing: bool = Field(
        default=False, description="Recompute activations in the backward pass to save memory."
    )
    report_to: Trackers = Field(
        default=(),
        description="Trackers of Transformers, for example `wandb,mlflow,tensorboard`; these "
        "three also get the scores of epochs and evaluations.",
    )
    evaluate: Literal["epoch", "off"] = Field(
        default="epoch",
        description="`epoch` evaluates on the validation set after each epoch, `off` does not. The "
        "weights are the same.",
    )
    keep: Literal["last", "best"] = Field(
        default="last",
        description="`last` keeps the weights of the last step; `best` those of the epoch with the "
        "best score on rows that are held out of the training rows (not on the validation set).",
    )
    keep_fraction: float = Field(
        KEEP_FRACTION,
        gt=0,
        le=0.5,
        description="With `keep=best`, fraction of the training rows to hold out.",
    )
    fsdp: bool = Field(
        default=False,
        description="Shard weights, gradients and optimizer states over the processes of the run "
        "(FSDP2), for models that are too large for one GPU.",
    )
    lora: Annotated[LoraSettings, Field(strict=False)] | None = Field(
        default=None, description="Settings of a LoRA adapter. Default: all weights are trained."
    )
    peft: dict[str, Any] | None = Field(
        default=None,
        description="Arguments of any PEFT configuration that changes layers, with its "
        "`peft_type` (the content of an `adapter_config.json`); instead of `lora`.",
    )
    label_names: Names | None = Field(
        default=None,
        description="Class names in the order of the model's outputs, for a new head, or for a "
        "head without names or with different names from the data.",
    )
    label_map: LabelMap = Field(
        default_factory=dict,
        description="Maps the checkpoint's class names to the data's, for example "
        "`POSITIVE=pos,NEGATIVE=neg`.",
    )
    new_head: bool = Field(
        default=False,
        description="Initialize a new classification head even if the checkpoint has one that "
        "fits.",
    )

    @property
    def given_names(self) -> GivenNames:
        return GivenNames(self.label_names, self.label_map)

    @property
    def adapter(self) -> dict[str, Any] | None:
        """Arguments of the PEFT configuration of the adapter to train; None trains all weights."""
        return self.peft if self.lora is None else self.lora.adapter()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.keep == "last" and self.keep_fraction != KEEP_FRACTION:
            raise ValueError(
                "`train.keep_fraction` has no effect because `train.keep` is 'last'. "
                "Set train.keep=best, or leave it out."
            )
        if self.lora is not None and self.peft is not None:
            raise ValueError(
                "`train.lora` and `train.peft` both name an adapter. Set only one of them."
            )
        if self.peft is not None and "peft_type" not in self.peft:
            raise ValueError("`train.peft` needs a `peft_type`, for example LORA or IA3.")
        return self

    def deciding(self) -> Tree:
        """Return the settings that influence the trained weights, for the run's key."""
        excluded = {"device", "save_steps", "logging_steps", "report_to", "evaluate"}
        if self.keep == "last":
            excluded |= {"keep", "keep_fraction"}
        # Left out if not set, so that the keys of earlier runs stay valid.
        later = ("lora", "peft", "label_names", "label_map", "new_head", "fsdp")
        excluded |= {setting for setting in later if not getattr(self, setting)}
        return self.model_dump(mode="json", exclude=excluded)
