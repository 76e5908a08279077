"""Temper's training settings in the words of Transformers' TrainingArguments."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

from temper.errors import SettingError
from temper.training.settings import TrainSettings


def arguments_of(settings: TrainSettings, out: Path | str, *, seed: int) -> dict[str, Any]:
    """Translate the settings of a run.

    Args:
        settings: Of the training loop.
        out: Folder of the checkpoints.
        seed: Seed of weights, data order and every draw.

    Returns:
        Keyword arguments of ``TrainingArguments``, in the names of Transformers 5.23.

    Raises:
        SettingError: If the device is not there, or cannot train at the precision.
    """
    device = settings.device
    if device.startswith("cuda:") and device != "cuda:0":
        raise SettingError(
            f"`train.device` is {device!r}, but a run trains on the first GPU that it sees. Set "
            f"CUDA_VISIBLE_DEVICES={device.removeprefix('cuda:')} and use 'cuda'."
        )
    has_gpu, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if (device.startswith("cuda") and not has_gpu) or (device == "mps" and not has_mps):
        raise SettingError(
            f"`train.device` is {device!r}, but no such device is there. Use 'auto' or 'cpu'."
        )
    on_gpu = device.startswith("cuda") or (device == "auto" and has_gpu)
    # Several processes have no way to exchange what lies on Apple's GPU.
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    on_cpu = not on_gpu and (device == "cpu" or not has_mps or several)
    if settings.precision == "fp16" and on_cpu:
        raise SettingError(
            "`train.precision` is 'fp16', which a CPU cannot train in. Use 'bf16' or 'fp32'."
        )
    values: dict[str, Any] = {
        "output_dir": str(out),
        "num_train_epochs": settings.epochs,
        "max_steps": settings.max_steps or -1,
        "per_device_train_batch_size": settings.batch_size,
        "gradient_accumulation_steps": settings.accumulation,
        "learning_rate": settings.learning_rate,
        "weight_decay": settings.weight_decay,
        "warmup_steps": settings.warmup_ratio,
        "lr_scheduler_type": settings.schedule,
        "max_grad_norm": settings.max_grad_norm,
        "bf16": settings.precision == "bf16",
        "fp16": settings.precision == "fp16",
        "save_strategy": "steps",
        "save_steps": settings.save_steps,
        "save_total_limit": 1,
        "logging_strategy": "steps",
        "logging_steps": settings.logging_steps,
        "report_to": list(settings.report_to) or "none",
        "seed": seed,
        # Said also where there is nothing but a CPU: without it Transformers refuses bf16 there.
        "use_cpu": on_cpu,
        "dataloader_pin_memory": on_gpu,
        "logging_nan_inf_filter": False,
    }
    if settings.gradient_checkpointing:
        values["activation_checkpointing"] = True
        values["activation_checkpointing_kwargs"] = {"use_reentrant": False}
    return values


def training_arguments(
    settings: TrainSettings, out: Path | str, *, seed: int, **more: Any
) -> TrainingArguments:
    """Return Transformers' arguments for Temper's settings.

    Args:
        settings: Of the training loop.
        out: Folder of the checkpoints.
        seed: Seed of weights, data order and every draw.
        more: Further arguments, taken as they are.

    Raises:
        SettingError: If the device is not there, or cannot train at the precision.
    """
    values = arguments_of(settings, out, seed=seed)
    fields = {field.name for field in dataclasses.fields(TrainingArguments)}
    if "activation_checkpointing" not in fields:  # its name before Transformers 5.23
        for name in [name for name in values if name.startswith("activation_")]:
            values[name.replace("activation_", "gradient_")] = values.pop(name)
    return TrainingArguments(**{**values, **more})
