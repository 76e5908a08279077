"""One process of a distributed run: many short trainings, whose weights it saves in a folder.

torchrun (``python -m torch.distributed.run``) runs this file as ``worker.py FOLDER``; the tests
call it in their own process for the same trainings on the whole batch.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset
from transformers import BertForTokenClassification, TrainerCallback, TrainingArguments

from temper.backward.rule import UpdateRule, chain
from temper.errors import NonFiniteError, SettingError, Terminated
from temper.forward import Losses, Plan, StepContext
from temper.methods import Method, build, configure
from temper.methods.at import AT
from temper.methods.dropout import Dropout
from temper.methods.plain import Plain
from temper.methods.r_at import RAT
from temper.methods.rec_adam import RecAdam
from temper.methods.uegr import UEGR
from temper.models.network import Parameters
from temper.training.config import wants_unlabeled
from temper.training.stepper import Stepper
from temper.training.trainer import RobustTrainer
from temper.types import Gradients, Reduction, State, Step, Term
from tests.contracts.architectures import tiny
from tests.distributed.launching import end_at_once
from tests.methods.tiny import of_each_kind, with_rules
from tests.training.alternating import Alternating

ROWS = 20
PROCESSES = 2
Inputs = dict[str, Tensor]


class Rows(Dataset[dict[str, Any]]):
    """Twenty rows of two to eight tokens; those in ``broken`` have a label that is NaN.

    Tagged rows have labels of tokens, none at the first and at every third.
    """

    def __init__(
        self, *, regression: bool = False, tagged: bool = False, broken: Sequence[int] = ()
    ) -> None:
        self.regression, self.tagged, self.broken = regression, tagged, set(broken)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, Any]:
        draws = torch.Generator().manual_seed(index)
        ids = torch.randint(4, 60, (2 + index % 7,), generator=draws).tolist()
        label: float = index % 3
        if self.regression:
            label = math.nan if index in self.broken else index / ROWS
        row = {"input_ids": ids, "attention_mask": [1] * len(ids)}
        if self.tagged:
            return row | {
                "labels": [-100 if at % 3 == 0 else ids[at] % 3 for at in range(len(ids))]
            }
        return row | {"labels": label}


def collate(items: Sequence[Mapping[str, Any]]) -> Inputs:
    """Pad rows to the longest."""
    longest = max(len(item["input_ids"]) for item in items)
    batch = {
        name: torch.tensor([[*item[name], *[0] * (longest - len(item[name]))] for item in items])
        for name in ("input_ids", "attention_mask")
    }
    labels = [item["labels"] for item in items]
    if isinstance(labels[0], list):
        labels = [[*each, *[-100] * (longest - len(each))] for each in labels]
    return {**batch, "labels": torch.tensor(labels)}


def start(*, tagged: bool = False, dropout: float = 0.1, labels: int = 3) -> nn.Module:
    """Return the network that a training starts from."""
    model = tiny("bert", dropout=dropout, labels=labels)
    if not tagged:
        return model
    tagger = BertForTokenClassification(model.config)
    # All its weights, since a tagger has no pooling layer.
    tagger.load_state_dict(model.state_dict(), strict=False)
    return tagger


class Reduced(Plain):
    """Two totals; the second term has either reduction. It replaces a divergence of dropout
    passes, whose draws depend on the number of processes.
    """

    NAME = "made"
    reduction: Reduction = "mean"
    recomputes: bool = False

    def plan(self, now: Step) -> Plan:
        return Plan(totals=1)

    def losses(self, step: StepContext) -> Iterator[Losses]:
        size = step.network.logits(step.batch).square().sum((-2, -1))
        yield [Term("size", size, 0.02, self.reduction)]

    def update(self) -> list[UpdateRule]:
        return [Again()] if self.recomputes else []


@dataclass(frozen=True)
class Again(UpdateRule):
    """Compute the gradient twice at the same weights, and return the mean."""

    def gradient(self, params: Parameters, state: State, compute: Any) -> Gradients:
        first = {name: value.clone() for name, value in compute().items()}
        return {name: (first[name] + value) / 2 for name, value in compute().items()}


QUIET_UEGR = UEGR(adaptive="uniform", epsilon=0.2, relative=False, mask=False)
NOISY: dict[str, Method] = {
    **{name: configure(name) for name in of_each_kind()},
    "dropout": Dropout(rate=0.3),
    "at": AT(ascent={"steps": 2}),
    # By default only the classifier learns for as long as this run lasts.
    "rec_adam": RecAdam(gamma=10.0, anneal={"t0": 2}),
    "uegr-epoch": UEGR(mask={"refresh": "epoch"}),
    "uegr-share": UEGR(fraction=0.5, mask=False),
    "roast-released": configure("roast", {"preset": "released"}),
    "jachess": configure("jachess"),
    "alternating": Alternating(),
    "uegr-fixed": UEGR(adaptive={"kind": "fixed", "rates": (0.1, 0.4)}),
}
"""Methods with dropout, for equality between the processes."""

EXACT: dict[str, tuple[Method, int]] = {
    **{
        f"reduced-{reduction}-{accumulation}": (Reduced(reduction=reduction), accumulation)
        for reduction, accumulation in (("mean", 1), ("mean", 3), ("sum", 2))
    },
    "plain-1": (Plain(), 1),
    "at-3": (AT(epsilon=0.2, relative=False, ascent={"steps": 2}), 3),
    "r_at-2": (RAT(epsilon=0.2, relative=False), 2),
    "uegr-3": (QUIET_UEGR, 3),
    "again-2": (Reduced(reduction="sum", recomputes=True), 2),
    "freelb-2": (configure("freelb", {"step_size": 0.1}), 2),
    "adv_weight-2": (configure("adv_weight", {"rho": 0.1}), 2),
    "awp-1": (configure("awp"), 1),
    "w_cons-2": (configure("w_cons"), 2),
    # All processes draw the same masks.
    "mixout-2": (configure("mixout"), 2),
    "child_tuning_f-1": (configure("child_tuning_f"), 1),
    "child_tuning_d-1": (configure("child_tuning_d"), 1),
    "lp_ft-2": (configure("lp_ft"), 2),
    # The third step holds a micro-batch of each phase.
    "alternating-2": (Alternating(), 2),
    "tagged-plain-2": (Plain(), 2),
    "tagged-uegr-3": (QUIET_UEGR, 3),
    "at + w_cons-3": (configure("at + w_cons", {"at": {"epsilon": 0.2, "relative": False}}), 3),
}
"""(method, accumulation) without dropout or masks, for equality with one process; 20 rows in
micro-batches of 4 leave a short last step for 2 and 3. "tagged" ones have labels of tokens, whose
numbers differ between the two processes."""


class CountReductions(TrainerCallback):
    """Count the buckets of gradients that leave this process, and the optimizer's steps."""

    def __init__(self) -> None:
        self.reductions, self.steps = 0, 0
        self.trainer: RobustTrainer | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.trainer is not None
        wrapped = self.trainer.model_wrapped
        assert isinstance(wrapped, DistributedDataParallel)
        wrapped.register_comm_hook(None, self._reduce)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps += 1

    # Bare, because the platform compares the annotations with its own classes.
    def _reduce(self, state, bucket):  # type: ignore[no-untyped-def]
        self.reductions += 1
        shared = bucket.buffer() / PROCESSES
        work = torch.distributed.all_reduce(shared, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])


def trainer_of(
    folder: Path,
    method: Method,
    *,
    accumulation: int = 1,
    exact: bool = False,
    rows: Rows | None = None,
    epochs: int = 1,
    double: bool = False,
    arguments: Mapping[str, Any] | None = None,
    **settings: Any,
) -> RobustTrainer:
    """Return a Trainer on the twenty rows, four a micro-batch over all processes.

    Methods that want rows without labels get the same rows as such, labels and all.

    Args:
        folder: For Transformers' output.
        method: The method.
        accumulation: Micro-batches a step.
        exact: No dropout and the rows in order, so that one process sees the same micro-batches.
        rows: Other rows.
        epochs: Passes over them.
        double: The model in float64.
        arguments: Further fields of ``TrainingArguments``, in the place of those here.
        settings: Further arguments of the Trainer.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    regression = rows is not None and rows.regression
    if wants_unlabeled(build(method)):
        settings["unlabeled_dataset"] = Rows()
    model = start(
        tagged=rows is not None and rows.tagged,
        dropout=0.0 if exact else 0.1,
        labels=1 if regression else 3,
    )
    fields: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4 // processes,
        "gradient_accumulation_steps": accumulation,
        "num_train_epochs": epochs,
        "learning_rate": 0.05 if exact else 1e-2,
        # Plain gradient descent, because Adam's first steps turn rounding into whole steps.
        "optim": "sgd" if exact else "adamw_torch",
        "train_sampling_strategy": "sequential" if exact else "random",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 3,
        "dataloader_pin_memory": False,
        "logging_steps": 1,
    }
    return RobustTrainer(
        model.double() if double else model,
        TrainingArguments(**{**fields, **(arguments or {})}),
        method=method,
        train_dataset=rows or Rows(),
        data_collator=collate,
        **settings,
    )


def weights_of(model: nn.Module, case: str) -> dict[str, Tensor]:
    """Return a model's weights under ``CASE/NAME``."""
    return {f"{case}/{name}": value.clone() for name, value in model.state_dict().items()}


def exact_runs(folder: Path) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Run the trainings that one process can repeat; return weights and mean losses."""
    weights, losses = {}, {}
    for case, (method, accumulation) in EXACT.items():
        rows = Rows(tagged=case.startswith("tagged"))
        trainer = trainer_of(folder, method, accumulation=accumulation, exact=True, rows=rows)
        losses[case] = trainer.train().training_loss
        weights |= weights_of(trainer.model, case)
    return weights, losses


def noisy_runs(
    folder: Path,
) -> tuple[dict[str, Tensor], dict[str, tuple[int, int]], dict[str, dict[str, Any]]]:
    """Run every method with dropout; return weights, reductions and steps, what was measured."""
    weights, counts, measured = {}, {}, {}
    for case, method in NOISY.items():
        counter = CountReductions()
        epochs = 2 if case == "uegr-epoch" else 1
        trainer = trainer_of(folder, method, accumulation=2, epochs=epochs, callbacks=[counter])
        counter.trainer = trainer
        trainer.train()
        weights |= weights_of(trainer.model, case)
        counts[case] = (counter.reductions, counter.steps)
        kept = trainer.running().state.get("smoothness", {})
        measured[case] = {
            key: value.tolist() if isinstance(value, Tensor) else value
            for key, value in kept.items()
        }
        measured[case]["losses"] = [
            (log["loss"], sum(value for name, value in log.items() if name.startswith("loss/")))
            for log in trainer.state.log_history
            if "loss" in log
        ]
    return weights, counts, measured


def stepper_run(method: Method, *, dropout: float) -> nn.Module:
    """Train by the Stepper in a loop of one's own, on four rows a step in two micro-batches."""
    rank, ranks = 0, 1
    model: nn.Module = tiny("bert", dropout=dropout).train()
    inner = model
    if torch.distributed.is_initialized():
        rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.05)
    stepper = Stepper(model, method, seed=5, rank=rank, ranks=ranks)
    rows = Rows()
    for step in range(3):
        micro_batches = []
        for micro in range(2):
            first = step * 4 + micro * 2
            mine = range(first + rank, first + 2, ranks)
            micro_batches.append(collate([rows[index] for index in mine]))
        optimizer.zero_grad()
        stepper.backward(*micro_batches)
        stepper.step(optimizer)
    stepper.remove_hooks()
    return inner


STEPPER_CASES: dict[str, tuple[Method, float]] = {
    "stepper-plain": (Plain(), 0.0),
    "stepper-uegr": (QUIET_UEGR, 0.0),
    "stepper-noisy": (UEGR(), 0.1),
}


def failures(folder: Path) -> dict[str, str]:
    """Return the message of each error that a fault on one process alone gives here."""
    messages = {}
    # Rows 2, 3 are the second process's in the first micro-batch.
    for case, rule in {"nan": chain(), "nan-again": Again()}.items():
        rows = Rows(regression=True, broken=[3])
        method = with_rules(rule)
        try:
            trainer_of(folder, method, exact=True, rows=rows).train()
        except NonFiniteError as error:
            messages[case] = str(error)
    model = DistributedDataParallel(tiny("bert", labels=1).train())
    rank = torch.distributed.get_rank()
    stepper = Stepper(model, "plain", rank=rank, ranks=PROCESSES)
    rows = Rows(regression=True, broken=[1])
    try:
        stepper.backward(collate([rows[rank]]))
    except NonFiniteError as error:
        messages["stepper"] = str(error)
    try:
        Stepper(model, "plain")
    except SettingError as error:
        messages["alone"] = str(error)
    return messages


def forward_outside_no_sync() -> list[bool]:
    """Tell whether gradients are reduced when the forward is outside ``no_sync``, and inside."""
    reduced = []
    rank = torch.distributed.get_rank()
    for inside in (False, True):
        model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
        x = torch.full((1, 1), float(rank + 1))
        if inside:
            with model.no_sync():
                model(x).sum().backward()
        else:
            loss = model(x).sum()
            with model.no_sync():
                loss.backward()
        # The gradient is x: 1 and 2 on the two processes, 1.5 once it was averaged.
        reduced.append(float(model.module.weight.grad) == 1.5)
    return reduced


class SignalOneProcess(TrainerCallback):
    """Send SIGTERM to the second process alone, at the end of its second step."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2 and torch.distributed.get_rank() == 1:
            signal.raise_signal(signal.SIGTERM)


def stopped(folder: Path) -> list[str]:
    """Return what a training leaves that a signal to one process ends."""
    trainer = trainer_of(folder, Plain(), callbacks=[SignalOneProcess()])
    trainer.args.save_strategy = "steps"
    trainer.args.save_steps = 100
    try:
        trainer.train()
    except Terminated:
        return sorted(entry.name for entry in folder.iterdir())
    return ["not stopped"]


def main(folder: Path) -> None:
    """Run everything and write the results."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)
    exact, losses = exact_runs(folder)
    noisy, counts, measured = noisy_runs(folder)
    rank = torch.distributed.get_rank()
    by_hand: dict[str, Tensor] = {}
    for case, (method, dropout) in STEPPER_CASES.items():
        by_hand |= weights_of(stepper_run(method, dropout=dropout), case)
    save_file({**exact, **noisy, **by_hand}, folder / f"weights_{rank}.safetensors")
    report = {
        "losses": losses,
        "counts": counts,
        "measured": measured,
        "forward_outside_no_sync": forward_outside_no_sync(),
        "failures": failures(folder),
        "stopped": stopped(folder / "stopped"),
    }
    (folder / f"report_{rank}.json").write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    end_at_once()
