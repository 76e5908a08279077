"""The loader of a training: one dataset, two phases, or the mixed batches of several tasks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from temper.errors import SettingError
from temper.models.blocks import unwrap
from temper.models.probing import innermost
from temper.training.multi_task.rows import TaskRows, mix
from temper.training.phases import join


def training_loader(
    trainer: Any, rows: Any, numbered: Callable[[Any], tuple[Any, Any]]
) -> tuple[Any, Any]:
    """Make the loader of a trainer's rows.

    Args:
        trainer: The `RobustTrainer`.
        rows: Its training rows.
        numbered: Makes a loader of one dataset, prepared by Accelerate, and gives the sampler
            behind it whose order follows the epoch, or None.

    Returns:
        The loader, and the sampler that must hear of every epoch, or None.

    Raises:
        SettingError: If rows of several tasks meet what cannot be trained on them.
    """
    accumulation = trainer.args.gradient_accumulation_steps
    if isinstance(rows, TaskRows):
        check_task_rows(trainer, rows)
        seed = trainer.args.data_seed if trainer.args.data_seed is not None else trainer.args.seed
        loaders = [numbered(each) for each in rows.parts.values()]
        return mix(loaders, rows, seed=seed, accumulation=accumulation)
    loader, sampler = numbered(rows)
    if trainer.unlabeled_dataset is None:
        return loader, sampler
    second, other = numbered(trainer.unlabeled_dataset)
    return join(loader, second, samplers=[sampler, other], accumulation=accumulation)


def check_task_rows(trainer: Any, rows: TaskRows) -> None:
    """Refuse what rows of several tasks cannot be trained with, before any step.

    Args:
        trainer: The `RobustTrainer`.
        rows: Its training rows.

    Raises:
        SettingError: If the model has other tasks, or a setting is meant for one task.
    """
    model = innermost(unwrap(trainer.model))
    own = tuple(getattr(getattr(model, "config", None), "task_names", None) or ())
    given = tuple(rows.parts)
    if own != given or "task" not in inspect.signature(model.forward).parameters:
        raise SettingError(
            f"The rows are of the tasks {', '.join(given)} in this order, and the model "
            f"{type(model).__name__} has {', '.join(own) or 'none'}. Give a model that "
            "temper.models.multi_task.classifier.share_encoder made for these tasks."
        )
    if trainer.unlabeled_dataset is not None or trainer.class_weights is not None:
        raise SettingError(
            "unlabeled_dataset and class_weights are for a training on one task, and the rows are "
            f"of {len(given)}. Leave them out."
        )
    if trainer.accelerator.dispatch_batches:
        raise SettingError(
            "`dispatch_batches` of accelerator_config has one process read the batches of all, "
            "which is not supported with rows of several tasks. Leave it out."
        )
