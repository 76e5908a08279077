"""The callback that runs a method's hooks in Transformers' training loop."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import SaveStrategy

from temper.stopping import stop_error
from temper.training.checks import check_resumable
from temper.training.loading import countable


class MethodCallback(TrainerCallback):
    """Run a method's hooks at the events of Transformers' training loop."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the number of steps; restore a checkpoint, or run a pre-pass before step 0."""
        stepper = self.trainer.running()
        stepper.total = state.max_steps
        self.trainer.restore()
        if state.global_step:
            check_resumable(self.trainer.train_dataset, epoch=state.epoch)
        if state.global_step == 0 and stepper.prepares:
            self.trainer.model_wrapped.train()
            stepper.network.use(self.trainer.model_wrapped)
            loader, unlabeled = kwargs["train_dataloader"], self.trainer.unlabeled_dataset
            with nullcontext() if unlabeled is None else self.trainer.sampler.first_alone():
                full = (inputs for inputs in loader if inputs)
                stepper.prepare(self.trainer._prepare_inputs(inputs) for inputs in full)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        epoch = int((state.epoch or 0.0) + 1e-6)
        if self.trainer.sampler is not None:
            self.trainer.sampler.set_epoch(epoch)
        rows = self.trainer.train_dataset
        # Accelerate calls `set_epoch` of streams itself.
        if countable(rows) and hasattr(rows, "set_epoch"):
            rows.set_epoch(epoch)
        self.trainer.running().begin_epoch(epoch)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.running().before_optimizer(self.trainer.optimizer)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.running().after_optimizer(
            skipped=self.trainer.accelerator.optimizer_step_was_skipped
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer.stop_signal:
            if args.save_strategy == SaveStrategy.NO:
                raise stop_error(self.trainer.stop_signal)
            control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer.stop_signal:
            # A rank that ends earlier would have the others killed while they write.
            self.trainer.accelerator.wait_for_everyone()
            raise stop_error(self.trainer.stop_signal)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.running().finish()
