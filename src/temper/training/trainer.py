"""RobustTrainer: Transformers' Trainer whose step is a method's.

The calls for a batch, in order::

    get_train_dataloader                the rows carry their numbers
    get_batch_samples                   the micro-batches of a step, and the units of its losses
    training_step, for each of them     Stepper.begin_step, run_passes; after the last one
                                        recompute_gradient, end_step, finish_backward
    Trainer                             clips the gradient
    MethodCallback                      Stepper.before_optimizer, the optimizer, after_optimizer
"""

from __future__ import annotations

import copy
import json
import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from accelerate.utils.memory import clear_device_cache
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import rotate_checkpoints

from temper.checkpoints.folder import PARTIAL
from temper.data.batches import LengthBucketSampler
from temper.errors import CheckpointError, ModelError, SettingError
from temper.methods import Method, build
from temper.methods.composition import smoothed
from temper.methods.soup import first_steps_of, members_of
from temper.models.kinds import head_of
from temper.models.modes import quiet
from temper.models.shards import sharded_modules
from temper.stopping import StopRequest
from temper.training import checkpoint_files, checks, sharding
from temper.training.checkpoint_files import read_state, write_state
from temper.training.config import check_kept, check_sharded
from temper.training.loading import (
    ROW,
    JoinedBatches,
    NumberedRows,
    RowKeeper,
    countable,
    split_evenly,
    token_counts,
    training_loader,
)
from temper.training.method_callback import MethodCallback
from temper.training.prepared import from_name
from temper.training.stepper import Stepper
from temper.training.supported import check_arguments, check_hooks
from temper.types import CONTEXT, TEACHER, Batch, Step


class RobustTrainer(Trainer):
    """Train with any method; everything else is as in ``transformers.Trainer``.

    Accumulation, clipping, schedulers, mixed precision, callbacks, ``report_to``, evaluation and
    resuming work as documented there. Checkpoints are safetensors and JSON, appear whole or not at
    all, and a resumed run reaches the weights of the uninterrupted one bit for bit (on CPU).

    docs/trainer.md and `temper.training.supported` list each argument and hook of ``Trainer``: it
    works, raises an error with an alternative, or has no effect.

    Args:
        model: As for ``Trainer``; its class determines the head (`temper.heads`). With a name (Hub
            id, folder or short name), the rows have a text and a label column.
        args: As for ``Trainer``.
        method: A method, its settings or its name.
        class_weights: Factor on the training loss of each class.
        bucket_by_length: Put rows of similar length into a step together; each epoch still sees
            every row once. A step has the same rows however many micro-batches and processes share
            it. Off when ``args.train_sampling_strategy`` asks for another order;
            ``"group_by_length"`` asks for this one.
        unlabeled_dataset: Unlabeled rows for methods that train on them, in the format of
            ``train_dataset``; labels are removed. Each epoch has its batches after all labeled
            ones, and they count as steps. In errors, its row numbers continue after those of
            ``train_dataset``.
        settings: All other arguments of ``Trainer``.

    Raises:
        SettingError: If the method is unknown, or a training argument is not supported.
        NonFiniteError: From ``train``, if a loss or a gradient is NaN or infinite.
        MemoryLimitError: From ``train``, if a step runs out of memory.
        ProcessLostError: From ``train``, if another process has ended. The last checkpoint is kept
            in all three cases.

    Example:
        In place of ``Trainer``; examples/trainer.py runs::

            RobustTrainer(model, args, method=UEGR(), train_dataset=rows).train()
    """

    def __init__(
        self,
        model: nn.Module | str | None = None,
        args: TrainingArguments | None = None,
        *,
        method: Method | str = "plain",
        class_weights: Sequence[float] | Tensor | None = None,
        bucket_by_length: bool = True,
        unlabeled_dataset: Any = None,
        **settings: Any,
    ) -> None:
        if isinstance(model, str):
            given, args = args, args or TrainingArguments("trainer_output")
            model, rate, settings = from_name(model, settings, seed=args.seed)
            if given is None:
                args = replace(args, learning_rate=rate)
            # The collator needs more of a row than the model does.
            args = replace(args, remove_unused_columns=False)
        self.method = build(method)
        self.class_weights = class_weights
        self.bucket_by_length = bucket_by_length
        self.unlabeled_dataset = unlabeled_dataset
        self.stepper: Stepper | None = None
        self._step = Step()
        self._micro = 0
        self._stop, self._agreed = StopRequest(), 0
        self._kept: list[Batch] = []
        self.sampler: LengthBucketSampler | JoinedBatches | None = None
        self._checkpoint: str | None = None
        if args is not None:
            check_arguments(args)
            sharding.check_arguments(args, settings)
        check_hooks(self, RobustTrainer)
        with sharding.without_plugin(args):
            super().__init__(model, args, **settings)
        # Losses are made of logits here, so a model need not take labels itself.
        self._set_signature_columns_if_needed()
        columns: list[str] = self._signature_columns  # type: ignore[has-type]
        self._signature_columns = [*columns, "labels", ROW, TEACHER, CONTEXT]
        checks.check_processes(self)
        head_of(self.model)  # raises for a model without a head that methods train
        method = smoothed(self.method, self.args.label_smoothing_factor)
        checks.check_task_loss(method, self.compute_loss_func, self.class_weights)
        if self.args.fsdp:
            check_sharded(method)
        if self.args.load_best_model_at_end:
            check_kept(method, "`load_best_model_at_end`")
        self.add_callback(MethodCallback(self))

    # One training run

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train as ``Trainer.train`` does; see there.

        Raises:
            CheckpointError: If the checkpoint to resume from is missing, damaged or does not fit.
            DataError: If rows or their labels do not fit the model.
            NonFiniteError: If a loss or a gradient is NaN or infinite.
            SettingError: If the rows are a stream and need a length, or the method does not support
                them.
            KeyboardInterrupt: At Ctrl-C, after a checkpoint was written; a second one does not wait
                for it. At SIGTERM it is `temper.errors.Terminated`, a ``SystemExit``.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = checkpoint_files.newest_checkpoint(self.args.output_dir)
        check_arguments(self.args)
        check_hooks(self, RobustTrainer)
        checks.check_rows(self)
        self._checkpoint = str(resume_from_checkpoint) if resume_from_checkpoint else None
        if self._checkpoint is not None:
            checkpoint_files.check_checkpoint(self._checkpoint, rank=self.args.process_index)
            if sharded_modules(self.model):
                raise CheckpointError(
                    "The model of this trainer is sharded since an earlier train(). Make a new "
                    "trainer to resume from a checkpoint."
                )
        if self.args.should_save:
            for unfinished in Path(self.args.output_dir).glob(f"{PARTIAL}*"):
                shutil.rmtree(unfinished)
        self._step = Step(number=-1)
        exchanging = checks.exchanging(self.args.process_index, self.args.world_size)
        loading = checkpoint_files.of_same_sizes(self._checkpoint)
        try:
            with StopRequest() as self._stop, exchanging, loading:
                return super().train(self._checkpoint, *args, **kwargs)
        finally:
            if self.stepper is not None:
                # A callback may have failed between two micro-batches, with weights moved.
                self.stepper.end_step()
                self.stepper.remove_hooks()

    @property
    def stop_signal(self) -> int:
        """Number of the signal that asked to stop after this step; 0 if there was none."""
        return self._agreed if self.args.world_size > 1 else self._stop.number

    def running(self) -> Stepper:
        """Return the stepper of the present training run; a `ModelError` outside of ``train``."""
        if self.stepper is None:
            raise ModelError("training_step was called outside of train(). Call train().")
        return self.stepper

    def set_initial_training_values(self, args: TrainingArguments, dataloader: Any) -> Any:
        """Shard the model, create the stepper and count the steps, those of all members."""
        # The model is loaded by now, and the optimizer does not exist yet.
        if self.args.fsdp:
            sharding.shard(self.model)
            # Transformers then leaves device placement and gradient exchange to the model.
            self.is_distributed_loading_by_transformers = True
            # Gradients kept for the last micro-batch would be unsharded, which takes memory.
            self.accelerator.gradient_state.plugin_kwargs["sync_each_batch"] = True
        self.stepper = Stepper(
            self.model,
            smoothed(self.method, self.args.label_smoothing_factor),
            seed=self.args.seed,
            rank=self.args.process_index,
            ranks=self.args.world_size,
            special_ids=getattr(self.processing_class, "all_special_ids", None) or (),
            class_weights=self.class_weights,
            task_loss=task_loss_of(self.compute_loss_func),
        )
        longer, members = copy.copy(args), members_of(self.method.rule)
        longer.num_train_epochs *= members
        if longer.max_steps > 0:
            longer.max_steps *= members
        return super().set_initial_training_values(longer, dataloader)

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> Any:
        """Make the scheduler as ``Trainer`` does; `soup` repeats it for each of its members."""
        starts = [0, *first_steps_of(self.method.rule, num_training_steps)]
        given = self.lr_scheduler is not None
        scheduler = super().create_scheduler(-(-num_training_steps // len(starts)), optimizer)
        if len(starts) == 1:
            return scheduler
        if given or not isinstance(scheduler, LambdaLR):
            reason = "one was given" if given else f"{type(scheduler).__name__} cannot restart"
            raise SettingError(
                f"The method {self.method.name!r} repeats the learning rate schedule and needs a "
                f"scheduler of Transformers, but {reason}. Leave the scheduler out of "
                "`optimizers`, and use linear, cosine or constant as `lr_scheduler_type`."
            )
        scheduler.lr_lambdas = [_from_each(course, starts) for course in scheduler.lr_lambdas]
        return scheduler

    # Data

    def get_train_dataloader(self) -> Any:
        """Make the loader of the training rows; each batch has its row numbers."""
        if self.train_dataset is None or not countable(self.train_dataset):
            return super().get_train_dataloader()
        loader, self.sampler = training_loader(self, self.train_dataset, self._numbered)
        return loader

    def _numbered(self, dataset: Any) -> tuple[Any, Any]:
        plain: Any = self.data_collator  # type: ignore[has-type]
        inner, rows = plain, self.train_dataset  # type: ignore[has-type]
        if hasattr(dataset, "remove_columns"):
            dataset = self._remove_unused_columns(dataset, description="Training")
        else:
            inner = self._get_collator_with_removed_columns(plain, description="Training")
        self.data_collator, self.train_dataset = RowKeeper(inner), NumberedRows(dataset)
        try:
            loader = super().get_train_dataloader()
        finally:
            self.data_collator, self.train_dataset = plain, rows
        split_evenly(loader)
        return loader, self.sampler

    def _get_train_sampler(self, train_dataset: Dataset[Any] | None = None) -> Any:
        dataset: Any = self.train_dataset if train_dataset is None else train_dataset
        if isinstance(dataset, NumberedRows):
            dataset = dataset.rows
        self.sampler, strategy = None, self.args.train_sampling_strategy
        # Transformers' grouping draws from the global generator, which a resume cannot restore.
        wanted = strategy == "group_by_length" or (self.bucket_by_length and strategy == "random")
        column = self.args.length_column_name if strategy == "group_by_length" else ""
        lengths = token_counts(dataset, column=column) if wanted else None
        if lengths is None:
            return super()._get_train_sampler(dataset)
        seed = self.args.data_seed if self.args.data_seed is not None else self.args.seed
        # An optimizer step has the same rows for any split, so memory does not change the result.
        parts = 1 if self.accelerator.split_batches else self.args.world_size
        rows = self._train_batch_size * self.args.gradient_accumulation_steps * parts
        # Lengths from the user's column may count something other than tokens.
        if column not in getattr(dataset, "column_names", ()):
            checks.check_lengths(lengths, self.model)
        checks.check_drop_last(self.args.dataloader_drop_last, rows=len(lengths), step=rows)
        self.sampler = LengthBucketSampler(
            lengths, batch_size=rows, seed=seed, drop_last=self.args.dataloader_drop_last
        )
        return self.sampler

    # The step

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Take the micro-batches of one optimizer step and count its units over all ranks."""
        # Transformers would count labels instead of rows.
        samples = list(islice(epoch_iterator, num_batches))
        batches = [Batch.of(sample) for sample in samples if sample]
        units = sum(map(self.running().network.heads.units, batches))
        rows = sum(batch.size for batch in batches)
        self._agreed = 0
        if self.args.world_size > 1:
            # Signals reach ranks in different steps; all of them stop after the same one.
            counted = torch.tensor([[units, rows, self._stop.number]], device=self.args.device)
            *counts, signals = self.accelerator.gather(counted).unbind(-1)
            units, rows = (int(count.sum()) for count in counts)
            self._agreed = int(signals.max())
        scaler = self.accelerator.scaler
        self._step = Step(
            number=self.state.global_step,
            units=units,
            rows=rows,
            ranks=self.args.world_size,
            total=self.state.max_steps,
            loss_scale=1.0 if scaler is None else float(scaler.get_scale()),
        )
        self._micro, self._kept = 0, []
        return samples, None

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> Tensor:
        """Run all passes of one micro-batch; on the last one of a step, finish the gradient."""
        stepper = self.running()
        # Empty micro-batches fill up the short last step of a phase or a task, and have no effect.
        if not inputs:
            return torch.zeros((), device=self.args.device)
        if self._step.number != self.state.global_step:
            raise ModelError(
                "The rows of this step were not counted: get_batch_samples is overridden and does "
                "not call super().get_batch_samples(). Call it there."
            )
        model.train()
        optimizer: Any = self.optimizer
        # Schedule-free optimizers keep other weights for evaluation.
        if callable(getattr(optimizer, "train", None)):
            optimizer.train()
        batch = Batch.of(self._prepare_inputs(inputs))
        last = bool(self.accelerator.sync_gradients)
        try:
            if not self._micro:
                stepper.begin_step(self._step)
            loss = self._run_passes(model, batch, micro=self._micro, last=last)
            self._micro += 1
            if stepper.recomputes:
                self._kept.append(batch)
            if last:
                stepper.recompute_gradient(self._step, partial(self._repeat, model))
        except BaseException as error:
            stepper.end_step()
            checks.check_memory(error, rows=batch.size)
            raise
        stepper.network.reset()
        every = self.args.torch_empty_cache_steps
        if every is not None and self.state.global_step % every == 0:
            clear_device_cache()
        if last:
            self._kept = []
            stepper.end_step()
            loss = loss + stepper.finish_backward(self._step)
        return loss

    def _run_passes(self, model: nn.Module, batch: Batch, *, micro: int, last: bool) -> Tensor:
        stepper = self.running()
        stepper.network.use(model)
        return stepper.run_passes(
            batch,
            self._step,
            micro=micro,
            last=last,
            backward=self.accelerator.backward,
            forward_context=self.compute_loss_context_manager,
            no_sync=partial(self.accelerator.no_sync, model=model),
        )

    def _repeat(self, model: nn.Module) -> None:
        for micro, batch in enumerate(self._kept):
            self._run_passes(model, batch, micro=micro, last=micro == len(self._kept) - 1)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        norm = sharding.whole(super()._get_grad_norm(model, grad_norm), keep=True)
        # Infinite gradients are normal with a loss scaler, which skips these steps.
        if self.accelerator.scaler is None:
            checks.check_gradient_norm(norm, self._step)
        return norm

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the parts of the loss, which add up to it, and diagnostics to a training log."""
        if self.stepper is not None and "loss" in logs:
            means = self.stepper.log.means()
            means.pop("loss")
            if self.args.world_size > 1:
                # Means over the processes, like Transformers' for the loss.
                parts = [name for name in means if name.startswith("loss/")]
                mine = torch.tensor([means[name] for name in parts], device=self.args.device)
                every = self.accelerator.reduce(mine, reduction="mean").tolist()
                means |= zip(parts, every, strict=True)
            logs = {**logs, **means, **self.stepper.diagnostics()}
            self.stepper.log.clear()
        super().log(logs, start_time)

    # Checkpoints

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write a checkpoint under a temporary name and rename it: it is whole or absent."""
        self.store_flos()
        run = Path(self._get_output_dir(trial=trial))
        final = run / f"checkpoint-{self.state.global_step}"
        partial_folder = run / f"{PARTIAL}{self.state.global_step}"
        if self.args.should_save:
            shutil.rmtree(partial_folder, ignore_errors=True)
            partial_folder.mkdir(parents=True)
        self.accelerator.wait_for_everyone()
        self.save_model(str(partial_folder), _internal_call=True)
        if self.state.best_global_step:
            best = run / f"checkpoint-{self.state.best_global_step}"
            if best == final or best.exists():
                self.state.best_model_checkpoint = str(best)
        if not self.args.save_only_model:
            self._save_states(partial_folder)
        if self.args.should_save:
            self._export_callbacks()
            self.state.save_to_json(str(partial_folder / "trainer_state.json"))
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            checkpoint_files.put_in_place(partial_folder, final)
            checkpoint_files.make_newest(final)
            rotate_checkpoints(
                output_dir=str(run),
                save_total_limit=self.args.save_total_limit,
                best_model_checkpoint=self.state.best_model_checkpoint,
                use_mtime=True,
            )

    def _export_callbacks(self) -> None:
        for callback in [*self.callback_handler.callbacks, self.control]:
            if isinstance(callback, ExportableState):
                callbacks = self.state.stateful_callbacks
                name = type(callback).__name__
                if isinstance(callbacks.get(name), list):
                    callbacks[name].append(callback.state())
                else:
                    callbacks[name] = callback.state()

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write weights, tokenizer and arguments, none of them pickled; all processes call this."""
        folder, mine = Path(output_dir or self.args.output_dir), self.args.should_save
        model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        state_dict = sharding.state_of(model, keep=mine) if self.args.fsdp else None
        if not mine:
            return
        folder.mkdir(parents=True, exist_ok=True)
        if hasattr(model, "save_pretrained"):
            with quiet():
                model.save_pretrained(folder, state_dict=state_dict)
        elif state_dict is None:
            safetensors.torch.save_model(model, str(folder / "model.safetensors"))
        else:
            gathered = {name: tensor.contiguous() for name, tensor in state_dict.items()}
            safetensors.torch.save_file(gathered, folder / "model.safetensors")
        if self.processing_class is not None:
            self.processing_class.save_pretrained(folder)
        arguments = json.dumps(self.args.to_dict(), default=str, indent=1)
        (folder / "training_args.json").write_text(arguments, encoding="utf-8")

    def _states(self) -> dict[str, Any]:
        states = {
            "optimizer": sharding.OptimizerState(self.optimizer),
            "scheduler": self.lr_scheduler,
            "method": self.running(),
        }
        scaler = self.accelerator.scaler
        return states if scaler is None else {**states, "scaler": scaler}

    def _save_states(self, folder: Path) -> None:
        mine, rank = self.args.should_save, self.args.process_index
        for name, part in self._states().items():
            state = sharding.whole(part.state_dict(), keep=mine)
            if mine:
                write_state(state, folder, name=name)
        write_state(checkpoint_files.generator_states(), folder, name=f"rng_state_{rank}")
        # With the sums since the last log, a resumed run logs the same as an uninterrupted one.
        progress = {
            "loss": self._tr_loss,
            "last_logged": self._globalstep_last_logged,
            "log": self.running().log.state_dict(),
        }
        write_state(progress, folder, name=f"progress_{rank}")

    def restore(self) -> None:
        """Load the checkpoint to resume from, after optimizer and scheduler were created."""
        if self._checkpoint is None:
            return
        for name, part in self._states().items():
            checkpoint_files.load_part(part, self._checkpoint, name=name)
        rank = checkpoint_files.rank_in(self._checkpoint, self.args.process_index)
        # Random generators are restored later, after the rows of earlier steps were skipped.
        progress = read_state(self._checkpoint, name=f"progress_{rank}")
        self._tr_loss = progress["loss"].to(self.args.device)
        self._globalstep_last_logged = progress["last_logged"]
        self.running().log.load_state_dict(progress["log"], self.args.device)
        # `train_loss` stays the mean over the steps of this call.
        self._total_loss_scalar = -float(self._tr_loss)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            rank = checkpoint_files.rank_in(checkpoint, self.args.process_index)
            states = read_state(checkpoint, name=f"rng_state_{rank}")
            checkpoint_files.set_generator_states(states)


def task_loss_of(
    given: Callable[..., Any] | None,
) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Return ``compute_loss_func`` as a function of logits and labels.

    It is called for every pass, with the number of rows of the call as ``num_items_in_batch``. So a
    function that divides a sum by it and one that takes a mean both return the mean over the rows.
    The mean is then weighted by the rows, so that micro-batches and processes equal one batch.
    """
    if given is None:
        return None

    def loss(logits: Tensor, labels: Tensor) -> Any:
        items = torch.tensor(len(labels), device=labels.device)
        return given(SequenceClassifierOutput(logits=logits), labels, num_items_in_batch=items)

    return loss


def _from_each(course: Callable[[int], float], starts: Sequence[int]) -> Callable[[int], float]:
    """Return a schedule that begins again at each of the steps ``starts``."""
    return lambda step: course(step - starts[bisect_right(starts, step) - 1])
