"""Checks before a training, and errors that stop it."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed
from torch import Tensor, nn

from temper.backward.hooks import Accumulates
from temper.backward.rule import implements
from temper.errors import (
    DataError,
    MemoryLimitError,
    NonFiniteError,
    ProcessLostError,
    SettingError,
    one_line,
)
from temper.files import check_free
from temper.functional.label_names import are_named, match_names
from temper.heads import HEADS, Choices
from temper.memory import is_exhausted
from temper.methods import Method
from temper.models.adapters import is_adapted
from temper.models.blocks import find_head, unwrap
from temper.models.kinds import position_limit
from temper.models.probing import innermost
from temper.settings import Faults
from temper.training.config import check_unlabeled
from temper.training.loading import LABELS, TaskRows, countable
from temper.types import Batch, Step


def check_one_process() -> None:
    """Raise a `SettingError` if several processes were started for work that only one can do."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SettingError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but only `temper train` on one task "
            "supports several processes. Start this command without torchrun, or unset WORLD_SIZE."
        )


def check_processes(trainer: Any) -> None:
    """Raise if a `RobustTrainer` cannot run on these processes.

    Raises:
        SettingError: If one process sees several GPUs, the model is spread over devices, or the
            launcher requests sharding other than FSDP2.
    """
    check_device_map(trainer.model)
    if trainer.args.n_gpu > 1:
        raise SettingError(
            f"One process sees {trainer.args.n_gpu} GPUs, so Transformers would use DataParallel. "
            "Start one process per GPU (torchrun --nproc_per_node), or set CUDA_VISIBLE_DEVICES "
            "to one GPU."
        )
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise SettingError(
            "The launcher requests DeepSpeed or Accelerate's FSDP, and neither is supported. Start "
            "the processes without them, and shard by FSDP2: "
            "TrainingArguments(fsdp=True)."
        )


def check_device_map(model: Any) -> None:
    """Raise a `SettingError` if a model is on several devices."""
    # `device_map="auto"` spreads a model if one device is too small.
    spread = getattr(unwrap(model), "hf_device_map", None) or {}
    # An integer is the number of a GPU; "disk" is not a device.
    indices = {
        str(device) if device == "disk" else str(torch.device(device)) for device in spread.values()
    }
    if len(indices) > 1:
        raise SettingError(
            f"The model is on several devices ({', '.join(sorted(indices))}: `device_map`), but "
            "methods need a model on one device. Load it without `device_map`, and shard it with "
            "TrainingArguments(fsdp=True) (`train.fsdp`)."
        )


def frozen_head(model: nn.Module) -> str:
    """Return a warning if the head of a PEFT model is frozen; empty otherwise."""
    inner = unwrap(model)
    head = find_head(inner, []) if is_adapted(inner) else frozenset()
    if not head or any(p.requires_grad for name, p in inner.named_parameters() if name in head):
        return ""
    return (
        f"The classification head of the PEFT model is frozen ({min(head)}). A newly drawn "
        "head stays random, and it is not saved with the adapter. Set task_type='SEQ_CLS' in the "
        "adapter's config, or modules_to_save with the head's name."
    )


def check_memory(error: BaseException, *, rows: int) -> None:
    """Raise a `MemoryLimitError` if an error of a micro-batch means that memory ran out."""
    if is_exhausted(error):
        smaller = (
            "reduce train.batch_size (and raise train.accumulation to keep the rows of a step), "
        )
        raise MemoryLimitError(
            f"Out of memory on a micro-batch of {rows} row{'s' if rows > 1 else ''}. To use less, "
            f"{smaller if rows > 1 else ''}reduce data.max_length, or set "
            "train.gradient_checkpointing=true."
        ) from error


@contextmanager
def exchanging(rank: int, processes: int) -> Iterator[None]:
    """Raise a `ProcessLostError` if communication fails because another process ended or hangs."""
    try:
        yield
    except RuntimeError as error:
        # Gloo's errors have no separate class, but name the library.
        failed = "gloo" in str(error) or isinstance(error, torch.distributed.DistError)
        if processes == 1 or not failed:
            raise
        raise ProcessLostError(
            f"Process {rank} of {processes} cannot reach another one, which has ended or hangs: "
            f"{one_line(str(error))} Checkpoints are kept. To resume, start all processes again; "
            "in your own script, call train(resume_from_checkpoint=True)."
        ) from error


def check_rows(trainer: Any) -> None:
    """Raise before any step if a `RobustTrainer` does not support its rows.

    Raises:
        SettingError: If there are no rows, the method needs their number and they are a stream,
            unlabeled rows are missing, unused or empty, the tasks differ from the model's, or a
            setting does not support such rows.
        DataError: If labels are strings, or the order of class names differs from the model's.
    """
    method, labeled, unlabeled = trainer.method, trainer.train_dataset, trainer.unlabeled_dataset
    if labeled is None or (countable(labeled) and not len(labeled)):
        has = "There is no train_dataset" if labeled is None else "train_dataset has no rows"
        raise SettingError(f"{has}. Pass a dataset with at least one row.")
    _check_labels(trainer.model, labeled)
    if implements(method.rule, Accumulates) and not countable(labeled):
        raise SettingError(
            "This method makes a pass over all rows before training, so train_dataset must have a "
            f"length, got {type(labeled).__name__}. Use a dataset with a length, or a method "
            "without this pass (for roast and uegr: mask={'refresh': 'step'})."
        )
    if isinstance(labeled, TaskRows):
        _check_tasks(trainer, labeled)
    check_unlabeled(method, given=unlabeled is not None)
    if unlabeled is not None:
        for name, dataset in (("train_dataset", labeled), ("unlabeled_dataset", unlabeled)):
            if not countable(dataset):
                raise SettingError(
                    "Unlabeled rows are trained on after the labeled ones of an epoch, so both "
                    f"need a dataset with a length, but {name} is a {type(dataset).__name__}. Use "
                    "a dataset with a length."
                )
        if not len(unlabeled):
            raise SettingError(
                "unlabeled_dataset has no rows. Pass at least one row, or leave it out."
            )
    if trainer.accelerator.dispatch_batches and (
        unlabeled is not None or isinstance(labeled, TaskRows)
    ):
        raise SettingError(
            "`dispatch_batches` of accelerator_config makes one process read all batches, which is "
            "not supported with unlabeled_dataset or several tasks. Leave it out."
        )


def _check_labels(model: Any, rows: Any) -> None:
    if not countable(rows) or isinstance(rows, TaskRows):
        return
    first = rows[0]
    columns = [name for name in LABELS if isinstance(first, Mapping) and name in first]
    if not columns:
        return
    label, column = first[columns[0]], columns[0]
    if isinstance(label, str):
        raise DataError(
            f"The labels of train_dataset are strings: {label!r:.40} in row 0. Pass class "
            f"indices from 0, for example with rows.class_encode_column({column!r}) of datasets, "
            "and set the model's config.id2label in the same order."
        )
    names = getattr((getattr(rows, "features", None) or {}).get(column), "names", None)
    config = getattr(innermost(unwrap(model)), "config", None)
    class_names = [
        str(name) for _, name in sorted((getattr(config, "id2label", None) or {}).items())
    ]
    if names is None or not are_named(names) or not are_named(class_names):
        return
    if match_names(names, class_names) != list(range(len(names))):
        raise DataError(
            f"The labels of train_dataset are named {', '.join(names)}, and the outputs of the "
            f"model (config.id2label) {', '.join(class_names)}, in a different order. "
            "Renumber the rows, "
            f"rows.align_labels_with_mapping(model.config.label2id, {column!r}), or set "
            "config.id2label to the rows' names if the head is newly trained."
        )


def check_lengths(lengths: Sequence[int] | None, model: nn.Module) -> None:
    """Raise a `DataError` if rows have no tokens, or more than the model has positions for."""
    # Temper's own rows are tokenized during training; their batches are checked instead.
    if not isinstance(lengths, list) or not lengths:
        return
    most, least = max(lengths), min(lengths)
    _refuse_length(least, lengths.index(least), longest=None)
    _refuse_length(most, lengths.index(most), longest=position_limit(model))


def check_batch(batch: Batch, *, longest: int | None) -> None:
    """Raise a `DataError` if a batch has no tokens, or more than the model's `position_limit`."""
    ids = batch.inputs.get("input_ids")
    if not isinstance(ids, Tensor) or ids.ndim < 2:
        return
    width = ids.shape[-1]
    if width and (longest is None or width <= longest):
        return
    longest_index = int(batch.mask.sum(1).argmax()) if width else 0
    row = None if batch.rows is None else int(batch.rows[longest_index])
    _refuse_length(width, row, longest=longest)


def _refuse_length(tokens: int, row: int | None, *, longest: int | None) -> None:
    where = "A batch" if row is None else f"Row {row} of train_dataset"
    if not tokens:
        raise DataError(
            f"{where} has no tokens. Leave empty texts out, or have the tokenizer add special "
            "tokens."
        )
    if longest is not None and tokens > longest:
        raise DataError(
            f"{where} has {tokens} tokens, and the model has positions for {longest}. Cut texts to "
            f"that length: tokenizer(..., truncation=True, max_length={longest}), or --max-length "
            f"{longest} (`data.max_length`)."
        )


def _check_tasks(trainer: Any, rows: TaskRows) -> None:
    model = innermost(unwrap(trainer.model))
    of_model = tuple(getattr(getattr(model, "config", None), "task_names", None) or ())
    given = tuple(rows.parts)
    if of_model != given or "task" not in inspect.signature(model.forward).parameters:
        raise SettingError(
            f"The rows are of the tasks {', '.join(given)}, in this order, but the model "
            f"{type(model).__name__} has {', '.join(of_model) or 'none'}. Pass a model that "
            "temper.models.multi_task.share_encoder made for these tasks."
        )
    if trainer.unlabeled_dataset is not None or trainer.class_weights is not None:
        raise SettingError(
            "unlabeled_dataset and class_weights are supported only with one task, and the rows "
            f"are of {len(given)} tasks. Leave them out."
        )


def check_head(method: Method, kinds: Mapping[str, str]) -> None:
    """Raise if a method does not support the kinds of labels, given by the name of the data."""
    faults = Faults()
    for name, kind in kinds.items():
        try:
            method.check_head(HEADS[kind])
        except SettingError as error:
            faults.append(f"{name}: {error}")
    faults.refuse()


def check_in_windows(method: Method) -> None:
    """Raise a `SettingError` if a method cannot train on texts in windows."""
    try:
        # The encoder reads the choices of a question as several sequences, too.
        method.check_head(Choices)
    except SettingError as error:
        raise SettingError(
            f"The method {method.name!r} does not support texts in windows (`data.stride`): each "
            "text must be one sequence. Leave the stride out, or use another "
            "method, such as r_drop or uegr."
        ) from error


def check_task_loss(method: Method, task_loss: Any, class_weights: Any) -> None:
    """Raise a `SettingError` if a loss function would ignore class weights or label smoothing."""
    smoothed = "label smoothing" in method.plan(Step()).conflicts
    both = {"class_weights": class_weights is not None, "label smoothing": smoothed}
    ignored = [name for name, given in both.items() if given]
    if task_loss is not None and ignored:
        raise SettingError(
            f"Your loss function replaces the task's loss and would ignore "
            f"{' and '.join(ignored)}. Leave it out, or put it into the function."
        )


def check_drop_last(drop_last: bool, *, rows: int, step: int) -> None:
    """Raise a `SettingError` if an incomplete last step is dropped and there is no other step."""
    if drop_last and rows < step:
        raise SettingError(
            f"`dataloader_drop_last` skips an incomplete step, and a step needs {step} rows but "
            f"there are {rows}. Leave it out, or lower the batch size or the accumulation."
        )


def check_resumable(dataset: Any, *, epoch: float) -> None:
    """Raise a `SettingError` if a training would resume within a later pass over a stream."""
    if epoch >= 1 and not countable(dataset):
        raise SettingError(
            f"Training on a stream ({type(dataset).__name__}) can be resumed only within its first "
            f"pass, and this checkpoint is from pass {int(epoch) + 1}. Use a dataset with a "
            "length."
        )


def check_gradient_norm(norm: float | Tensor, step: Step) -> None:
    """Stop at a gradient that is not finite, before it reaches weights and checkpoints."""
    if not math.isfinite(norm):
        raise NonFiniteError(
            f"The gradient's norm is {float(norm)} at step {step.number}, though every loss is "
            "finite. Training stopped before the weights moved; the last checkpoint is intact. "
            "Lower the learning rate or epsilon.",
            step=step.number,
            term="gradient",
            rows=[],
        )


def check_disk(folder: Path, model: nn.Module) -> None:
    """Raise a `WriteError` if there is no room for the last checkpoint and the model of a run."""
    sizes = [(p.numel() * p.element_size(), p.requires_grad) for p in model.parameters()]
    trained = sum(size for size, is_trained in sizes if is_trained)
    saved = trained if is_adapted(model) else sum(size for size, _ in sizes)
    # Weights twice, and Adam's two moments of those that are trained.
    check_free(folder, 2 * saved + 2 * trained, what="the model with a checkpoint to resume from")
