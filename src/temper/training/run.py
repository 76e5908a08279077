"""Train one run in its folder: check everything, resume a stopped run, publish the result."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainingArguments

from temper.backward.hooks import Accumulates, OnTrainEnd
from temper.backward.rule import implements
from temper.checkpoints.folder import RunFolder, is_finished
from temper.checkpoints.identity import versions
from temper.data.augmentation import AugmentedExamples
from temper.data.collator import Collator
from temper.data.encode import LazilyEncoded, cut_notices
from temper.data.examples import NAMED, Splits
from temper.data.reading import splits_read_as
from temper.data.sources import load_splits
from temper.data.windows import NOT_IN_WINDOWS
from temper.errors import CheckpointError, SettingError, TemperError, WriteError
from temper.files import writing
from temper.functional.precision import bf16_notices
from temper.models.adapters import is_adapted, save_adapter
from temper.models.folders import save_model
from temper.models.hf import lasting_name
from temper.progress import Progress
from temper.training import sharding
from temper.training.checks import check_disk, check_one_process
from temper.training.config import RunConfig, run_key
from temper.training.cost import cost_in_words, passes_of
from temper.training.prepared import (
    Prepared,
    label_names,
    metric_of,
    network_notices,
    parameter_counts,
    prepare,
    with_head,
)
from temper.training.processes import Processes, check_run
from temper.training.recorder import EpochScores, Recorder, carve
from temper.training.settings import TrainSettings
from temper.training.trackers import TrackedRun, tracked
from temper.training.trainer import RobustTrainer


def train(
    config: RunConfig,
    out: Path | str,
    *,
    resume: bool = True,
    splits: Splits | None = None,
    progress: Progress | None = None,
    processes: Processes | None = None,
) -> Path:
    """Fine-tune one model and return its folder, which docs/formats.md describes.

    A finished run with the same key is not changed. A stopped one with the same key resumes from
    its last checkpoint and reaches the weights of an uninterrupted run.

    Args:
        config: The checked settings.
        out: The run's folder; created after data, labels, model and method were checked.
        resume: Whether to resume a stopped run; if False, it starts over.
        splits: The data of ``config``, if the caller has loaded them and reported their notices.
        progress: Receives steps and notices.
        processes: The processes that train the run together, each with the same arguments; None
            for a single process.

    Raises:
        TemperError: If data, labels, model or method do not fit, the folder has another run, or a
            loss is not finite.
        KeyboardInterrupt: On Ctrl-C, after a checkpoint was written and ``run.json`` was given the
            status ``stopped``; at SIGTERM `temper.errors.Terminated`, a ``SystemExit``.
    """
    if processes is None:
        check_one_process()
        processes = Processes()
    progress = progress or Progress()
    folder = processes.folder(Path(out))
    with processes.together():
        check_run(config, processes)
        result = folder.record()
        if splits is None:
            splits = load_splits(config.data)
            progress.info_all(splits_read_as(splits))
            progress.notice_all(splits.notices)
        if config.data.unlabeled is None:
            splits = splits.labeled()
        key = run_key(config, splits)
    processes.check_same(
        {
            "model": config.model,
            "seed": config.seed,
            **config.settings(),
            "versions": versions(),
            "rows and weights": key,
            "resume": resume,
        }
    )
    result = processes.of_first(result)
    with processes.together():
        if finished := is_finished(folder, result, config, key, progress):
            folder.sweep_finished()
        else:
            splits, prepared = _prepared(config, splits, progress)
    if not finished:
        active = ActiveRun(config, folder, key, splits, progress, prepared, processes)
        try:
            active.run(resume=resume)
        except (KeyboardInterrupt, SystemExit):
            processes.wait_stopped()
            raise
        # All wait here until the first process has completed the folder and unlocked it.
        processes.gather(None)
    return folder.path


def _prepared(config: RunConfig, splits: Splits, progress: Progress) -> tuple[Splits, Prepared]:
    """Load and build a run; return its data without the rows that choose the epoch, and the run."""
    known, splits = splits.notices, with_head(config, splits)
    progress.notice_all(notice for notice in splits.notices if notice not in known)
    selection = None
    if config.train.keep == "best":
        rest, selection = carve(splits.train, config.train.keep_fraction, seed=config.data.seed)
        notice = (
            f"{len(selection):,} of {len(splits.train):,} training rows choose the epoch whose "
            "weights are kept, and are not trained on (train.keep=best)."
        )
        progress.notice(notice)
        splits = replace(splits, train=rest, notices=(*splits.notices, notice))
    prepared = prepare(config, splits, selection=selection)
    progress.notice_all(network_notices(config, prepared.model, prepared.tokenizer))
    # Reports read the record's `truncated`, so this is not among the record's notices.
    length, tokenizer = config.data.max_length, prepared.tokenizer
    progress.notice_all(
        cut_notices(
            prepared.rows,
            tokenizer,
            max_length=length,
            windows=config.data.windows,
            stride="" if splits.train.kind in NOT_IN_WINDOWS else "--set data.stride=",
        )
    )
    progress.notice_all(prepared.notices)
    return splits, prepared


@dataclass
class ActiveRun:
    """A checked run that is being trained."""

    config: RunConfig
    folder: RunFolder
    key: str
    splits: Splits
    progress: Progress
    prepared: Prepared
    processes: Processes = field(default_factory=Processes)

    def __post_init__(self) -> None:
        prepared, train = self.prepared, self.config.train
        self.recorder = Recorder(self.folder, self.progress, on_save=lambda: self.write("running"))
        collator = Collator(prepared.tokenizer)
        self.scores = EpochScores(
            prepared.scored, collator, train.batch_size, self.folder, self.progress
        )
        self.device = train.device
        self.passes: float | None = None
        self.parameters = parameter_counts(prepared.model)

    @property
    def plan(self) -> Any:
        """The settings as the caller gave them."""
        return self.config

    def run(self, *, resume: bool) -> None:
        """Train; the folder then has a finished run, a stopped one, or nothing."""
        with ExitStack() as stack:
            is_new, result = False, None
            with self.processes.together():
                is_new = stack.enter_context(self.folder.held())
                if self.folder.writes:
                    # Another process may have come to its end since the folder was looked at.
                    result = self.folder.record()
            result = self.processes.of_first(result)
            with self.processes.together():
                if is_finished(self.folder, result, self.plan, self.key, self.progress):
                    return
                if self.folder.writes:
                    self._check_process_count(result if resume else None)
                if result is None and self.folder.writes:
                    check_disk(self.folder.path, self.prepared.model)
            try:
                with writing(self.folder.path):
                    self._train_steps(result if resume else None)
            except (TemperError, KeyboardInterrupt, SystemExit):
                if is_new and self.recorder.done == 0:
                    self.folder.clear()
                else:
                    self.folder.drop_unfinished()
                    # A full disk may have no room for it; the next call finds it "running".
                    with suppress(WriteError):
                        self.write("stopped")
                raise

    def _check_process_count(self, record: dict[str, Any] | None) -> None:
        """Raise a `CheckpointError` if the number of processes of a stopped run has changed."""
        before, now = (record or {}).get("processes", 1), self.processes.count
        # Random draws depend on the number of processes.
        if record is not None and before != now and self.folder.last_checkpoint() is not None:
            raise CheckpointError(
                f"{self.folder.path} has a stopped run that was trained by {before} "
                f"process{'es' if before > 1 else ''}, and now there {'are' if now > 1 else 'is'} "
                f"{now}: it would not reach the same weights. Use the same number of processes, or "
                "start over with --restart."
            )

    def write(self, status: str) -> None:
        """Write the record with the times so far."""
        self.folder.write_record(self.record(status))

    def record(self, status: str) -> dict[str, Any]:
        """Return the record as docs/formats.md describes it."""
        epochs = self.scores.record()
        return self.record_of(status, self.key, self.config, self.splits, self.prepared, epochs)

    def record_of(
        self,
        status: str,
        key: str,
        config: RunConfig,
        splits: Splits,
        prepared: Prepared,
        epochs: dict[str, Any] | None,
    ) -> dict[str, Any]:
        """Return the record of this run, or of one of its tasks."""
        train_rows = splits.train
        return {
            "status": status,
            "key": key,
            "model": config.model,
            "method": config.method_name,
            "seed": config.seed,
            "settings": config.settings(),
            "task": {
                "kind": train_rows.kind,
                "metric": metric_of(config, train_rows),
                "labels": label_names(train_rows) if train_rows.kind in NAMED else [],
            },
            "data": sets_of(config, splits, prepared),
            "notices": [*splits.notices, *prepared.notices],
            "truncated": prepared.rows.truncated,
            "unknown_tokens": prepared.rows.unknown,
            "parameters": self.parameters,
            "versions": versions(),
            **({} if epochs is None else {"epochs": epochs}),
            "passes": None if self.passes is None else round(self.passes, 2),
            "times": self.recorder.times(),
            "device": self.device,
            **({"processes": self.processes.count} if self.processes.count > 1 else {}),
        }

    def _train_steps(self, record: dict[str, Any] | None) -> None:
        step = 0
        with self.processes.together():
            if self.folder.writes:
                if record is None:
                    self.folder.clear()
                if (last := self.folder.last_checkpoint()) is not None:
                    step = int(last.name.rpartition("-")[2])
                    self.progress.notice(f"{self.folder.path} is resumed at step {step}.")
                self.folder.cut_metrics(step)
        step = self.processes.of_first(step)
        checkpoint = self.folder.checkpoints / f"checkpoint-{step}" if step else None
        with self.processes.together():
            self.recorder.resume(step, (record or {}).get("times", {}) if step else {})
            self.scores.resume(step)
            # Before the Trainer makes its folder: a process killed there must leave a run to
            # resume.
            self.write("running")
            trainer = self._trainer()
        # The Trainer has already moved the model to its device.
        method = self.prepared.method
        self.passes = passes_of(self.prepared.model, method, self.few_rows(self.prepared.rows))
        if self.passes is not None:
            self.progress.notice_all(cost_in_words(self.config.method_name, method, self.passes))
        if checkpoint is None and implements(trainer.method.rule, Accumulates):
            self.progress.info(
                f"{self.config.method_name} first measures gradients in a pass over all rows; the "
                "steps begin after it."
            )
        self.progress.notice_all(bf16_notices(trainer.args.device) if trainer.args.bf16 else ())
        self.device = str(trainer.args.device)
        self.write("running")
        tracked_run = TrackedRun(self.folder.path, self.plan.settings(), step)
        with tracked(tracked_run, self._trackers(), self.progress.notice) as trackers:
            trackers.attach(trainer.callback_handler.callbacks)
            self.scores.send = trackers.send
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
            if implements(trainer.method.rule, OnTrainEnd):
                self.scores.score_finished(trainer.model)
        state = None
        if self.config.train.fsdp:
            # A collective call: each process has some rows of the weights.
            state = sharding.state_of(trainer.model, keep=self.folder.writes)
        with self.processes.together():
            if self.folder.writes:
                self._publish(trainer, state)

    def _trackers(self) -> tuple[str, ...]:
        return self.config.train.report_to if self.folder.writes else ()

    def few_rows(self, rows: LazilyEncoded | AugmentedExamples) -> dict[str, Tensor]:
        """Return a batch of two short rows, to count the passes of a step."""
        return Collator(self.prepared.tokenizer)(rows.shortest(2))

    def _trainer(self) -> RobustTrainer:
        listeners = [self.recorder, self.scores]
        # The settings give the batch size over all processes.
        of_one: dict[str, Any] = {
            "per_device_train_batch_size": self.config.train.batch_size // self.processes.count,
            "report_to": list(self._trackers()) or "none",
            **({"fsdp": True} if self.config.train.fsdp else {}),
        }
        return make_trainer(
            self.prepared, self.config, self.folder.checkpoints, listeners, **of_one
        )

    def _publish(self, trainer: RobustTrainer, state: dict[str, Tensor] | None) -> None:
        staging = self.folder.staging
        shutil.rmtree(staging, ignore_errors=True)
        self.write_model(trainer.accelerator.unwrap_model(trainer.model), staging, state)
        # safetensors makes files that only their owner may read; a model is made to be shared.
        readable = staging.stat().st_mode & 0o666
        for file in staging.rglob("*"):
            if file.is_file():
                file.chmod(readable)
        self.folder.publish(self.record("finished"))

    def write_model(
        self, model: Any, staging: Path, state: dict[str, Tensor] | None = None
    ) -> None:
        """Write the model and its tokenizer; ``state`` has the weights of a sharded model."""
        lora = self.config.train.lora
        if lora is not None and lora.merge:
            model = model.merge_and_unload()
        if is_adapted(model):
            base = None if self.config.train.adapter is None else lasting_name(self.config.model)
            save_adapter(model, staging, base=base)
            self.prepared.tokenizer.save_pretrained(staging)
        else:
            save_model(model, self.prepared.tokenizer, staging, state_dict=state)


def sets_of(config: RunConfig, splits: Splits, prepared: Prepared) -> dict[str, Any]:
    """Return the field ``data`` of a record: facts about each set of rows."""
    sets = {"train": splits.train, "dev": splits.dev, "unlabeled": splits.unlabeled}
    records: dict[str, Any] = {
        name: {
            "rows": len(rows),
            "hash": rows.hash,
            "text_pair": rows.text_pair is not None,
            "source": rows.source,
        }
        for name, rows in sets.items()
        if rows is not None
    }
    if prepared.unlabeled is not None:
        records["unlabeled"]["truncated"] = prepared.unlabeled.truncated
    if (chosen := prepared.selection) is not None:
        records["selection"] = {
            "rows": len(chosen),
            "hash": chosen.hash,
            "seed": config.data.seed,
            "source": chosen.source,
        }
    return records


def make_trainer(
    prepared: Prepared,
    config: RunConfig,
    folder: Path | str,
    callbacks: Sequence[Any],
    **arguments: Any,
) -> RobustTrainer:
    trainer = RobustTrainer(
        prepared.model,
        training_arguments(
            config.train,
            folder,
            seed=config.seed,
            disable_tqdm=True,
            # The collator needs more of a row than the model does.
            remove_unused_columns=False,
            **arguments,
        ),
        method=prepared.method,
        class_weights=prepared.class_weights,
        bucket_by_length=config.train.group_by_length,
        train_dataset=prepared.rows,
        unlabeled_dataset=prepared.unlabeled,
        data_collator=Collator(prepared.tokenizer),
        processing_class=prepared.tokenizer,
        callbacks=list(callbacks),
    )
    # `PrinterCallback` prints every log to stdout, which belongs to the caller.
    handler = trainer.callback_handler
    handler.callbacks = [c for c in handler.callbacks if type(c).__name__ != "PrinterCallback"]
    return trainer


def training_arguments(
    settings: TrainSettings, out: Path | str, *, seed: int, **more: Any
) -> TrainingArguments:
    """Translate the settings of a run to `TrainingArguments`, with the arguments ``more``."""
    device = settings.device
    if device.startswith("cuda:") and device != "cuda:0":
        raise SettingError(
            f"`train.device` is {device!r}, but a run trains on the first GPU that it sees. Set "
            f"CUDA_VISIBLE_DEVICES={device.removeprefix('cuda:')} and use 'cuda'."
        )
    has_gpu, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if (device.startswith("cuda") and not has_gpu) or (device == "mps" and not has_mps):
        raise SettingError(
            f"`train.device` is {device!r}, but PyTorch finds no such device. Use 'auto' or 'cpu'."
        )
    on_gpu = device.startswith("cuda") or (device == "auto" and has_gpu)
    # Several processes cannot exchange tensors of Apple's GPU.
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
        # A value below 1 is a fraction of all steps.
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
        # Also on a machine without a GPU: Transformers would refuse bf16 there.
        "use_cpu": on_cpu,
        "dataloader_pin_memory": on_gpu,
        "logging_nan_inf_filter": False,
    }
    if settings.gradient_checkpointing:
        # Transformers before 5.23 calls it gradient checkpointing.
        is_new = hasattr(TrainingArguments, "activation_checkpointing")
        name = "activation_checkpointing" if is_new else "gradient_checkpointing"
        values |= {name: True, f"{name}_kwargs": {"use_reentrant": False}}
    return TrainingArguments(**{**values, **more})
