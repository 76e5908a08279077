"""Trainings that are saved and resumed, and trainings with sharded weights (FSDP2).

torchrun runs this file as ``saved.py FOLDER few|all``; the tests call the same functions in their
own process for the expected values. In float64 the order of a sum does not hide a mistake.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed
from safetensors.torch import save_file
from torch import Tensor, nn

from temper.backward.rule import UpdateRule, chain
from temper.functional.masks import MANY_ROWS
from temper.methods import Method, configure
from temper.methods.child_tuning_d import ChosenMask
from temper.methods.child_tuning_f import RandomMask
from temper.methods.mixout import Mixing
from temper.methods.reinit import TopLayers
from temper.methods.selection import EpochSelectiveUpdate, Selective, SelectiveUpdate
from temper.methods.w_cons import Anchor
from temper.models.blocks import find_blocks, parameters_of
from temper.models.network import Parameters
from temper.seeding import Streams
from temper.training import sharding
from temper.training.trainer import RobustTrainer
from temper.types import Gradients, Step
from tests.distributed.launching import end_at_once
from tests.distributed.worker import NOISY, QUIET_UEGR, trainer_of

SAVED_AT = 2
FEW = ("uegr-epoch",)
"""Of `NOISY`; a slow test does all."""

LONG: dict[str, Method] = {
    "uegr": QUIET_UEGR,
    "adv_weight": configure("adv_weight", {"rho": 0.1}),
    "ema": configure("ema"),
}
"""Methods that draw nothing by row, for some steps that one process can repeat."""
MOVED = ("ema",)
"""Of these, what is gone on with by another number of processes."""
STEPS, LONG_SAVED_AT = 10, 6
BATCH = 6


def saving_trainer(
    folder: Path, method: Method, *, sharded: bool, epochs: int = 1
) -> RobustTrainer:
    """Return a Trainer with dropout, whose optimizer has a state, that saves at `SAVED_AT`."""
    return trainer_of(
        folder,
        method,
        accumulation=2,
        double=True,
        epochs=epochs,
        arguments={"save_strategy": "steps", "save_steps": SAVED_AT, "fsdp": sharded or None},
        # Without Adam's division, which turns rounding into whole steps.
        optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    )


def saved_runs(folder: Path, cases: Iterable[str]) -> dict[str, Tensor]:
    """Train, and resume from a checkpoint; return weights under ``CASE/HOW/WHEN/NAME``."""
    weights: dict[str, Tensor] = {}
    for case in cases:
        epochs = 2 if case == "uegr-epoch" else 1
        for how in ("replicated", "sharded"):
            own = folder / case / how
            for when in ("whole", "resumed"):
                trainer = saving_trainer(own, NOISY[case], sharded=how == "sharded", epochs=epochs)
                checkpoint = own / f"checkpoint-{SAVED_AT}"
                trainer.train(str(checkpoint) if when == "resumed" else None)
                weights |= whole_weights(trainer, f"{case}/{how}/{when}")
    return weights


def long_trainer(folder: Path, case: str, *, processes: int, sharded: bool) -> RobustTrainer:
    """Return a Trainer of `LONG` on six rows a step, however many processes share them."""
    return trainer_of(
        folder,
        LONG[case],
        exact=True,
        double=True,
        arguments={
            "max_steps": STEPS,
            "per_device_train_batch_size": BATCH // processes,
            "dataloader_drop_last": True,
            "activation_checkpointing": case == "ema",
            "save_strategy": "steps",
            "save_steps": LONG_SAVED_AT,
            "fsdp": sharded or None,
        },
    )


def long_runs(
    folder: Path, *, processes: int, origin: Path | None = None, cases: Iterable[str] = tuple(LONG)
) -> dict[str, Tensor]:
    """Train 10 steps, or resume from checkpoints of another number of processes.

    Args:
        folder: Where checkpoints are written.
        processes: How many train.
        origin: Another call's folder.
        cases: Of `LONG`.
    """
    weights: dict[str, Tensor] = {}
    for case in cases:
        trainer = long_trainer(folder / case, case, processes=processes, sharded=processes > 1)
        checkpoint = None if origin is None else origin / case / f"checkpoint-{LONG_SAVED_AT}"
        trainer.train(None if checkpoint is None else str(checkpoint))
        weights |= whole_weights(trainer, case)
    return weights


def whole_weights(trainer: RobustTrainer, case: str) -> dict[str, Tensor]:
    """Return the weights of all processes together under ``CASE/NAME``."""
    state = sharding.state_of(trainer.accelerator.unwrap_model(trainer.model), keep=True)
    return {f"{case}/{name}": value.clone() for name, value in state.items()}


class Toy(nn.Module):
    """Two blocks between a tall table and a head, of sizes that no number of processes divides."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(MANY_ROWS + 3, 3)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 5)) for _ in range(2)
        )
        self.head = nn.Linear(5, 1)
        draws = torch.Generator().manual_seed(11)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(generator=draws)


RULES: dict[str, UpdateRule] = {
    "step": SelectiveUpdate(Selective()),
    "fine": SelectiveUpdate(Selective(p_min=0.0, scope="all")),
    "range": SelectiveUpdate(Selective(normalize="range")),
    "epoch": EpochSelectiveUpdate(Selective()),
    "random": RandomMask(),
    "chosen": ChosenMask(largest_norm=0.5),
    "mixing": Mixing(),
    "neurons": Mixing(unit="neuron"),
    "layers": TopLayers(),
    "anchor": Anchor(0.1),
}
"""Rules that draw by position, or look at all weights at once."""


def gradients_of(params: Parameters, seed: int) -> Gradients:
    """Draw this process's rows of whole gradients; of the table's rows few are touched."""
    grads = {}
    for index, (name, parameter) in enumerate(params.of_model.items()):
        draws = torch.Generator().manual_seed(100 * seed + index)
        gradient = torch.randn(parameter.shape, generator=draws)
        if name.startswith("table"):
            gradient[::7] = 0
            gradient[50:-50] = 0
        grads[name] = params.part(name, gradient).clone()
    return grads


@torch.no_grad()
def ruled(update: UpdateRule, model: nn.Module) -> dict[str, Tensor]:
    """Apply a rule to random gradients for a step; return all results, unsharded."""
    params = parameters_of(model, find_blocks(model))
    params.start.update({name: tensor.clone() * 0.9 for name, tensor in params.tensors.items()})
    rule = chain(update)
    state, streams, step = rule.init(params), Streams(7), Step(total=10)
    rule.begin_run(params, state, streams)
    rule.accumulate(gradients_of(params, 1), params, state)
    rule.begin_epoch(params, state, streams, epoch=0)
    rule.before_forward(params, state, step, streams)
    seen = {name: tensor.clone() for name, tensor in params.tensors.items()}
    params.set_gradients(rule.gradient(params, state, lambda: gradients_of(params, 2)))
    rule.after_backward(params, state)
    grads = rule.regularize(params.gradients(), params, state, step, streams)
    grads = rule.transform(grads, params, state, streams)
    for name, tensor in params.tensors.items():
        tensor.sub_(grads[name])
    rule.after_step(params, state, step)
    kinds = {"seen": seen, "gradient": grads, "weight": params.tensors}
    result = {
        f"{kind}/{name}": params.gathered(name, tensor).clone()
        for kind, tensors in kinds.items()
        for name, tensor in tensors.items()
    }
    logged = {**rule.diagnostics(state), **rule.regularization_losses(state)}
    return {
        **result,
        **{f"log/{name}": torch.as_tensor(value) for name, value in logged.items()},
    }


def ruled_toys(*, sharded: bool, cases: Iterable[str] = tuple(RULES)) -> dict[str, Tensor]:
    """Let rules act on weights that are shared out, or not; under ``RULE/KIND/NAME``."""
    return {
        f"{case}/{name}": value
        for case in cases
        for name, value in ruled(RULES[case], sharding.shard(Toy()) if sharded else Toy()).items()
    }


def main(folder: Path, which: str) -> None:
    """Run everything and write the weights of each process."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)
    logging.disable(logging.WARNING)
    first = long_runs(folder / "long", processes=int(os.environ["WORLD_SIZE"]))
    rank, processes = torch.distributed.get_rank(), torch.distributed.get_world_size()
    again = long_runs(folder / "again", processes=processes, origin=folder / "alone", cases=MOVED)
    kinds = {"long": first, "again": again, "rules": ruled_toys(sharded=True)}
    if which in ("few", "all"):
        kinds["saved"] = saved_runs(folder / "saved", FEW if which == "few" else NOISY)
    result = {f"{kind}/{name}": value for kind, own in kinds.items() for name, value in own.items()}
    save_file(result, folder / f"weights_{rank}.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
    end_at_once()
