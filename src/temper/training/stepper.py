"""Stepper: a method's step for any PyTorch loop, and the core that the Trainer drives.

Every optimizer step::

    backward(*micro_batches)
        begin_step           rule.before_forward(weights); a new training: initial weights first
        run_passes           for each micro-batch: for total in step_totals(methods, ...):
                             total.backward(), so that one graph is alive at a time
        recompute_gradient   rule.gradient(...), for example at other weights
        end_step             rule.after_backward(weights)
        finish_backward      gradients = rule.regularize(gradients)
    clip                     the caller's
    step(optimizer)
        before_optimizer     gradients = rule.transform(gradients); learning rates
        optimizer.step()
        after_optimizer      rule.after_step(weights)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from temper.backward.hooks import Accumulates, AfterStep, BeginsRun, RecomputesGradient
from temper.backward.rule import implements
from temper.errors import NonFiniteError, SettingError
from temper.forward import StepContext
from temper.forward.totals import step_totals
from temper.heads import Heads
from temper.methods import Method, build
from temper.methods.method import size_warning
from temper.methods.soup import first_steps_of
from temper.models.blocks import unwrap
from temper.models.kinds import head_of, position_limit
from temper.models.network import Network, Parameters
from temper.models.shards import sharded_modules
from temper.models.windows import windows_of
from temper.seeding import Streams
from temper.training import checks
from temper.training.config import check_sharded
from temper.training.step_log import StepLog, moved
from temper.types import Batch, Gradients, State, Step

Context = Callable[[], AbstractContextManager[Any]]
Group = dict[str, Any]


class Stepper:
    """Run a method's steps on a model.

    Args:
        model: A Transformers model for a task of `temper.heads`, a PEFT model around one, or any
            module that takes ``input_ids`` and returns logits. Its class decides the head. Training
            mode, device, optimizer and clipping are up to you. For several processes wrap it in
            DistributedDataParallel, or shard it by ``temper.training.sharding.shard`` (FSDP2),
            before this call.
        method: A method or its name.
        seed: Seed of every random draw (dropout, masks, noise).
        rank: Process number in distributed training.
        ranks: Number of processes; each must process the same number of rows per step.
        total: Optimizer steps of the whole run, for methods with phases.
        special_ids: Ids of special tokens, for methods that do not perturb them.
        class_weights: Factor on the loss of each class; with several labels per text, on the loss
            of each label that applies.
        task_loss: A function of logits [B, C] and labels [B] that replaces the task's loss in all
            passes; it returns one loss per row [B], or their mean.
        accelerator: The ``Accelerator`` that prepared model and optimizer, for a loop that uses
            ``accelerator.accumulate``. Micro-batches are collected until the last one of the step.
            Loss scaling, rank and number of processes are taken from it.

    Raises:
        ModelError: If the model is a masked language model, or the method does not support it, for
            example lp_ft without a head.
        SettingError: If the method's name or settings are wrong, the model is spread over devices,
            or wrapped for several processes and ``ranks`` is not their number, ``total`` is missing
            and needed, or ``task_loss`` meets class weights or label smoothing.
        NonFiniteError: From ``backward``, if a loss is NaN or infinite, on all processes.

    Every ``backward`` is followed by ``step``, or by ``discard`` to leave the step out.

    Example:
        Under 15 lines of user code::

            stepper = Stepper(model, UEGR())
            for inputs in loader:  # input_ids, attention_mask, labels ...
                optimizer.zero_grad()
                logs = stepper.backward(inputs)  # all passes; several micro-batches accumulate
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                stepper.step(optimizer)  # the update rule around optimizer.step()

        Some methods need more calls, which the others ignore:

        - ``prepare(loader)`` before the first step: roast, child_tuning_d, jachess, and masks that
          are drawn once per epoch
        - ``begin_epoch(number)`` before each epoch: roast, child_tuning_d, and these masks
        - ``finish()`` after the last step: ema, wise_ft, soup, and distil if it keeps the teacher
        - ``total=STEPS``: lp_ft, soup, smart, and ema with ``begin``
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method | str = "plain",
        *,
        seed: int = 0,
        rank: int = 0,
        ranks: int = 1,
        total: int = 0,
        special_ids: Sequence[int] = (),
        class_weights: Sequence[float] | Tensor | None = None,
        task_loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        accelerator: Any = None,
    ) -> None:
        self.accelerator = accelerator
        if accelerator is not None:
            rank, ranks = accelerator.process_index, accelerator.num_processes
        self.method = build(method)
        if windows_of(model) is not None:
            checks.check_in_windows(self.method)
        self.rule = self.method.rule
        self.recomputes = implements(self.rule, RecomputesGradient)
        _check_ranks(model, rank, ranks)
        checks.check_device_map(model)
        checks.check_task_loss(self.method, task_loss, class_weights)
        if class_weights is not None:
            device = next(model.parameters()).device
            class_weights = torch.as_tensor(class_weights, dtype=torch.float32, device=device)
        outputs = getattr(getattr(unwrap(model), "config", None), "num_labels", 1)
        heads = Heads(
            head_of(model), class_weights=class_weights, task_loss=task_loss, outputs=outputs
        )
        self.network = Network(model, special_ids=special_ids, heads=heads)
        if warning := checks.frozen_head(model):
            self.network.warn_once(warning)
        self.params = self.network.parameters()
        if self.params.shards:
            check_sharded(self.method)
        self.total, self.longest = total, position_limit(model)
        self.state: State = self.rule.init(self.params)
        self.number = 0
        self.ranks = ranks
        self.streams = Streams(seed, rank=rank)
        self.log = StepLog()
        self._waiting = self._sized = False
        self._micro_batches: list[Batch] = []
        self._groups: tuple[list[Group], list[tuple[Group, list[Group]]]] | None = None
        self._begun = False
        self._rates: dict[str, tuple[float, float]] = {}

    # The passes of a step

    def backward(self, *micro_batches: Mapping[str, Any] | Batch) -> dict[str, float]:
        """Add the gradient of one optimizer step to ``.grad``.

        Args:
            micro_batches: Outputs of a collator: ``input_ids``, ``attention_mask``, ``labels``
                ...; several are accumulated, each row weighing the same.

        Returns:
            ``loss``, the weighted total; by ``loss/TERM`` its parts, which add up to it; by
            ``unweighted/TERM`` the mean over the rows of a term that has a weight or is summed.
            Also ``gradient/TERM``, the norm of a term's gradient w.r.t. the logits, and the
            diagnostics of losses and update rule. Empty while the micro-batches of an accelerator's
            step are collected.

        Raises:
            NonFiniteError: If a loss is NaN or infinite.
            SettingError: If no batch is given, or the step before was neither taken nor discarded.
            DataError: If labels are missing or do not fit the head, or a batch has no tokens or too
                many.
        """
        if self._waiting:
            raise SettingError(
                f"stepper.step() was not called after the backward() of step {self.number}. Call "
                "stepper.step(optimizer) after every backward(), in place of optimizer.step(), "
                "which applies no update rule. Pass all micro-batches of a step to one call, "
                "backward(first, second), or leave a step out by stepper.discard()."
            )
        if not micro_batches:
            raise SettingError("backward() needs at least one batch, got none.")
        batches = [
            batch if isinstance(batch, Batch) else Batch.of(batch) for batch in micro_batches
        ]
        if self.accelerator is not None:
            # The losses are divided by the units of the whole step, known at its last micro-batch.
            self._micro_batches += batches
            if not self.accelerator.sync_gradients:
                return {}
            batches, self._micro_batches = self._micro_batches, []
        scaler = None if self.accelerator is None else self.accelerator.scaler
        step = Step(
            self.number,
            units=sum(map(self.network.heads.units, batches)) * self.ranks,
            rows=sum(batch.size for batch in batches) * self.ranks,
            ranks=self.ranks,
            total=self.total,
            loss_scale=1.0 if scaler is None else float(scaler.get_scale()),
        )

        def differentiate(total: Tensor) -> None:
            (total if scaler is None else scaler.scale(total)).backward()

        self.log.clear()

        def run() -> None:
            for micro, batch in enumerate(batches):
                self.run_passes(
                    batch,
                    step,
                    micro=micro,
                    last=micro == len(batches) - 1,
                    backward=differentiate,
                    # Keeps gradients on this process, if the model is wrapped to exchange them.
                    no_sync=getattr(self.network.forward_module, "no_sync", nullcontext),
                )

        if self.recomputes:
            self.params.clear_gradients()
        try:
            self.begin_step(step)
            run()
            self.recompute_gradient(step, run)
        finally:
            self.end_step()
        self.finish_backward(step)
        return {**self.log.means(), **self.diagnostics()}

    def begin_step(self, step: Step) -> None:
        """Run the rule's hook before a step's first pass."""
        self.params.refresh(self.network.model)
        self._begin_run()
        if self.begins_training(step):
            self.params.restore_initial_weights()
        self.rule.before_forward(self.params, self.state, step, self.streams.at(step=step.number))

    def _begin_run(self) -> None:
        if self._begun or self.number:
            return
        self._begun = True
        if implements(self.rule, BeginsRun):
            with torch.no_grad():
                self.rule.begin_run(self.params, self.state, self.streams.at(step=0))
                # The run starts from the weights that the rule has set.
                for name, tensor in self.params.start.items():
                    tensor.copy_(self.params.tensors[name])

    def begins_training(self, step: Step) -> bool:
        """Whether training of a member of the run (`soup` has several) begins with this step."""
        return step.number in first_steps_of(self.rule, step.total)

    def run_passes(
        self,
        batch: Batch,
        step: Step,
        *,
        micro: int = 0,
        last: bool = True,
        backward: Callable[[Tensor], None] = torch.Tensor.backward,
        forward_context: Context = nullcontext,
        no_sync: Context = nullcontext,
    ) -> Tensor:
        """Run all passes of one micro-batch and their backwards; return its detached total.

        Args:
            batch: The micro-batch.
            step: Position in training; losses are divided by its ``units``.
            micro: Number of the micro-batch within the step.
            last: Whether it is the step's last micro-batch.
            backward: Runs backward on a total, for example through a loss scaler.
            forward_context: Context of every forward pass, for example autocast.
            no_sync: Context of every forward and backward pass except the last one of the step, in
                which distributed training synchronizes gradients.
        """
        self._check_batch(batch)
        streams = self.streams.at(step=step.number, micro=micro)
        context = StepContext(self.network, batch, self.state, step, streams)
        losses = step_totals(self.method.composed(), context)
        passes = context.plan.all_totals
        whole = torch.zeros((), device=batch.device)
        for index in range(passes):
            with nullcontext() if last and index == passes - 1 else no_sync():
                with forward_context():
                    terms = next(losses)
                    total = terms.total(step)
                self.log.add(terms, batch, total, step)
                whole = whole + total.detach()
                backward(total)
                del terms, total
        if not self._sized and self.network.first_norms is not None:
            self._sized = True
            perturbation, embeddings = map(float, self.network.first_norms)
            text = size_warning(self.method, perturbation=perturbation, embeddings=embeddings)
            if text and self.streams.rank == 0:
                self.network.warn_once(text)
        if next(losses, None) is not None:
            raise ValueError(
                f"The losses of {self.method.name!r} yielded more totals than its plan declares."
            )
        # Passes without a backward leave sharded weights gathered; the rule needs the shards.
        self.params.refresh(self.network.model)
        return whole

    def _check_batch(self, batch: Batch) -> None:
        checks.check_batch(batch, longest=self.longest)
        if batch.labels is not None:
            self.method.check_head(type(self.network.heads.of(batch.labels)))

    def recompute_gradient(self, step: Step, repeat: Callable[[], None]) -> None:
        """Let the rule compute the step's gradient again, for example at other weights."""
        if not self.recomputes:
            return
        # Before the rule recomputes: other processes would wait for one that has raised.
        self.check(step)
        # The first call returns the gradient that the passes have already computed.
        first = [self.params.gradients()]

        def compute() -> Gradients:
            if first:
                return first.pop()
            self.params.clear_gradients()
            self.log.replaying = True
            try:
                # The passes of all micro-batches, with the same draws.
                repeat()
            finally:
                self.log.replaying = False
            return self.params.gradients()

        self.params.set_gradients(self.rule.gradient(self.params, self.state, compute))

    def end_step(self) -> None:
        """Undo the changes of ``begin_step``, after the passes or a failure of one."""
        self.network.reset()
        self.params.refresh(self.network.model)
        self.rule.after_backward(self.params, self.state)

    def finish_backward(self, step: Step) -> Tensor | float:
        """Check the losses, regularize the gradients, and return the regularization losses' sum."""
        self.check(step)
        streams = self.streams.at(step=self.number)
        with torch.no_grad():
            grads = self.params.gradients()
            self.params.set_gradients(
                self.rule.regularize(grads, self.params, self.state, step, streams)
            )
            self._waiting = True
            losses = self.rule.regularization_losses(self.state)
            for name, value in losses.items():
                self.log.add_regularization(name, value)
            return sum(losses.values(), 0.0)

    def check(self, step: Step) -> None:
        """Stop all processes if a loss since the last check is not finite on one of them.

        Raises:
            NonFiniteError: On that process with term and rows; on the others with its rank.
        """
        if not self.log.pending:
            return
        bad: list[int] = []
        if self.ranks > 1:
            mine = self.log.finite().reshape(1).to(torch.uint8)
            gathered = [torch.empty_like(mine) for _ in range(self.ranks)]
            torch.distributed.all_gather(gathered, mine)
            bad = [rank for rank, flag in enumerate(gathered) if not bool(flag)]
        self.log.check(step)
        if bad:
            raise NonFiniteError(
                f"A loss on process {bad[0]} is not finite at step {step.number}; see its own "
                "message.",
                step=step.number,
                term="unknown",
                rows=[],
            )

    def discard(self) -> None:
        """Clear the gradient that ``backward`` prepared, so that the step is left out."""
        self.params.clear_gradients()
        self._waiting, self._micro_batches = False, []

    # The step of the optimizer

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Apply the update rule around the optimizer's step; clip the gradient before this call.

        Raises:
            SettingError: If Accelerate prepared the optimizer and the stepper has no accelerator.
        """
        if self.accelerator is None:
            if type(optimizer).__module__.startswith("accelerate."):
                raise SettingError(
                    "The optimizer was prepared by Accelerate, which skips steps and scales "
                    "losses. Pass its accelerator: Stepper(..., accelerator=accelerator)."
                )
        elif not self.accelerator.sync_gradients:
            return
        elif self.accelerator.scaler is not None:
            try:
                self.accelerator.unscale_gradients(optimizer)
            except RuntimeError as error:
                # clip_grad_norm_ unscales too, and torch refuses a second time in one step.
                if "already been called" not in str(error):
                    raise
        self.before_optimizer(optimizer)
        try:
            optimizer.step()
        finally:
            self._restore_rates()
        self.after_optimizer(skipped=bool(getattr(optimizer, "step_was_skipped", False)))

    def before_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the rule change the clipped gradient, and scale the learning rates of this step."""
        streams = self.streams.at(step=self.number)
        with torch.no_grad():
            grads = self.params.gradients()
            self.params.set_gradients(self.rule.transform(grads, self.params, self.state, streams))
            scales = self.rule.learning_rate_scales(self.params, self.state, self._now())
        if self.begins_training(self._now()):
            optimizer.state.clear()
        if scales:
            groups = optimizer.param_groups
            factors = {id(self.params.of_model[name]): scale for name, scale in scales.items()}
            parts = [_by_rate(group, factors) for group in groups]
            self._groups = (groups, list(zip(groups, parts, strict=True)))
            groups[:] = [part for several in parts for part in several]
        if implements(self.rule, AfterStep):
            self._rates = _rates(self.params, optimizer)

    def after_optimizer(self, *, skipped: bool = False) -> None:
        """Restore the learning rates, run the rule's hook, and count the step."""
        self._restore_rates()
        with torch.no_grad():
            self.rule.after_step(self.params, self.state, replace(self._now(), skipped=skipped))
        self._waiting = False
        self.number += 1

    def _now(self) -> Step:
        return Step(self.number, total=self.total, ranks=self.ranks, rates=self._rates)

    def _restore_rates(self) -> None:
        if self._groups is None:
            return
        groups, split = self._groups
        for group, parts in split:
            # Some optimizers count their steps in the group.
            kept = {"params", "lr"}
            group.update({key: value for key, value in parts[0].items() if key not in kept})
        groups[:] = [group for group, _ in split]
        self._groups = None

    # Before training, at each epoch, and at the end

    @property
    def prepares(self) -> bool:
        """Whether the rule needs batches before the first step."""
        return implements(self.rule, Accumulates) or self.rule.calibration_rows > 0

    def prepare(self, batches: Iterable[Mapping[str, Any]]) -> None:
        """Run the rule's measurements before training, on one epoch of training batches.

        They are squared gradients of the clean loss over all batches, or Jacobian norms of the
        layers on the first batches. Rules that need neither are skipped.
        """
        if not self.prepares:
            return
        self._begin_run()
        accumulates = implements(self.rule, Accumulates)
        calibration: list[Batch] = []
        rows = 0
        for index, inputs in enumerate(batches):
            batch = Batch.of(inputs)
            if rows < self.rule.calibration_rows:
                calibration.append(batch)
                rows += batch.size * self.ranks
            elif not accumulates:
                break
            if accumulates:
                self._clean_gradient(batch, index)
                self.rule.accumulate(self.params.gradients(), self.params, self.state)
        self.params.clear_gradients()
        if calibration:
            first, streams = Step(ranks=self.ranks), self.streams.at(step=0)
            self.rule.calibrate(self.network, calibration, self.params, self.state, first, streams)
        self.network.reset()
        self.log.clear()

    def _clean_gradient(self, batch: Batch, index: int) -> None:
        """Compute the gradient of the clean loss on a batch before training."""
        self._check_batch(batch)
        self.params.clear_gradients()
        units = self.network.heads.units(batch) * self.ranks
        step = Step(index, units=units, rows=batch.size * self.ranks, ranks=self.ranks)
        streams = self.streams.at(step=index)
        # Other draws than those of the training step of this number.
        streams = replace(streams, seed=streams.local("prepare"))
        losses = next(step_totals((), StepContext(self.network, batch, self.state, step, streams)))
        total = losses.total(step)
        self.log.add(losses, batch, total, step)
        torch.autograd.backward(total)
        self.params.refresh(self.network.model)
        self.check(step)

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch, from 0; needed by rules whose masks last an epoch."""
        self._begin_run()
        self.rule.begin_epoch(
            self.params, self.state, self.streams.at(step=self.number), epoch=epoch
        )

    def finish(self) -> None:
        """Let the rule set the final weights, for example to their average."""
        with torch.no_grad():
            self.rule.on_train_end(self.params, self.state)

    # Logs, checkpoints, hooks of the model

    def diagnostics(self) -> dict[str, float]:
        return {name: float(value) for name, value in self.rule.diagnostics(self.state).items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the step number and the rule's state: tensors and plain values."""
        state = {"number": self.number, "rule": self.state, "start": dict(self.params.start)}
        # The entries for a sharded parameter are sharded like it.
        return dict(self.params.by_parameter(state, self.params.as_shard))

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Load a ``state_dict``; for a sharded model it is that of the unsharded one."""
        device = next(iter(self.params.tensors.values())).device
        state = self.params.by_parameter(dict(saved), self.params.part)
        self.number, self.state = int(state["number"]), moved(state["rule"], device)
        self.params.start.update(moved(state["start"], device))

    def remove_hooks(self) -> None:
        """Remove all hooks from the model, which is then unchanged except for its weights."""
        self._restore_rates()
        self.network.remove_hooks()


def _check_ranks(model: nn.Module, rank: int, ranks: int) -> None:
    """Raise if the model is wrapped for another number of processes than ``ranks``."""
    wrapped = isinstance(model, nn.parallel.DistributedDataParallel) or sharded_modules(model)
    processes = torch.distributed.get_world_size() if wrapped else ranks
    if ranks != processes or not 0 <= rank < ranks:
        raise SettingError(
            f"The model runs on {processes} processes, and the Stepper was given rank={rank} and "
            f"ranks={ranks}. Pass rank=torch.distributed.get_rank() and "
            "ranks=torch.distributed.get_world_size()."
        )


def _by_rate(group: Group, factors: Mapping[int, float]) -> list[Group]:
    """Split a parameter group of an optimizer by the factor on each parameter's learning rate."""
    by_factor: dict[float, list[Tensor]] = {}
    for tensor in group["params"]:
        by_factor.setdefault(factors.get(id(tensor), 1.0), []).append(tensor)
    parts = [
        {**group, "params": tensors, "lr": group["lr"] * factor}
        for factor, tensors in by_factor.items()
    ]
    return parts or [group]


def _rates(params: Parameters, optimizer: torch.optim.Optimizer) -> dict[str, tuple[float, float]]:
    by_parameter = {
        id(tensor): (float(group["lr"]), float(group.get("weight_decay", 0.0)))
        for group in optimizer.param_groups
        for tensor in group["params"]
    }
    return {
        name: by_parameter[id(t)] for name, t in params.of_model.items() if id(t) in by_parameter
    }
