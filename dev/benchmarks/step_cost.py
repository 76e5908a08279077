"""Time of one training step of each method, relative to plain fine-tuning.

Run ``python -m dev.benchmarks.step_cost``. Every round takes one step of each method in random
order, in one process, so a slow period of the machine affects all methods. The table has medians
over the rounds and the ratio of medians. The time includes optimizer and clipping. Methods run in
groups of eight, each with its own plain steps, so that the models fit into 6 GiB.

*Limit* is the shortest possible time of the method (`dev.benchmarks.account`), from the times of a
plain step's passes, of its update, and of reading and writing memory, measured in the same rounds.
Rows named ``released`` use the order of work of the released code. In addition the stock Trainer
(with and without grouping by length) and ``RobustTrainer`` with ``plain`` train on rows of mixed
lengths.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import Trainer, TrainerCallback, TrainingArguments

from dev.benchmarks import account
from dev.benchmarks.record import write
from dev.benchmarks.workload import BATCH, CLASSES, METHODS, STEPS, Workload, minilm
from temper import RobustTrainer

TARGETS = {
    "uegr without mask": 3.0,
    "uegr": 3.6,
    "r_at": 3.0,
    "roast": 2.5,
    "at": 2.0,
    "freelb": 3.0,
    "vat": 2.7,
    "smart without teacher": 2.7,
    "smart": 3.05,
    "r_drop": 1.95,
    "adv_weight": 2.05,
    "child_tuning_f": 1.3,
    "child_tuning_d": 1.1,
    "mixout": 1.4,
    "w_cons": 1.1,
    "jacobian": 2.6,
    "jacobian part": 2.6,
    "jachess": 4.8,
    "jachess four-point": 3.6,
    "jachess every 4": 2.0,
}
WARM_UP = 3
TOGETHER = 8
THREADS = 2
STOCK, GROUPED, OURS = "stock Trainer", "stock Trainer by length", "RobustTrainer, plain"
LENGTHS, TRAINER_STEPS = (3, 110), 12


@dataclass
class Floor:
    """Times of the parts of a plain step, sampled in the rounds of the methods.

    Args:
        passes: Seconds of a plain step's passes.
        update: Seconds of its clipping and optimizer.
        number: Seconds to read or write one number for each weight.
    """

    passes: list[float] = field(default_factory=list)
    update: list[float] = field(default_factory=list)
    number: list[float] = field(default_factory=list)

    def sample(self, workload: Workload) -> None:
        """Time both parts of a plain step, and the sum of two tensors as large as the weights."""
        size = sum(tensor.numel() for tensor in workload.model.parameters())
        first, second, into = (torch.ones(size, device=workload.device) for _ in range(3))
        workload.optimizer.zero_grad(set_to_none=True)
        start = time.perf_counter()
        workload.passes()
        passed = time.perf_counter()
        workload.update()
        updated = time.perf_counter()
        torch.add(first, second, out=into)
        self.number.append((time.perf_counter() - updated) / (3 * size))
        self.passes.append(passed - start)
        self.update.append(updated - passed)

    def limits(self, workloads: Mapping[str, Workload]) -> dict[str, float]:
        """Return the limit of each method's step, relative to plain fine-tuning."""
        model = account.counted_model()
        passes, update, number = map(statistics.median, (self.passes, self.update, self.number))
        result = {}
        for label, workload in workloads.items():
            rules = account.moved(label, workload.stepper.params)
            result[label] = account.limit(
                account.passes(label, model),
                sum(each * size for each, size in rules.values()),
                plain_passes=passes,
                plain_update=update,
                seconds_a_number=number,
            )
        return result


def rounds_of(
    labels: list[str], *, rounds: int, console: Console, batch: int = BATCH
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Time interleaved steps.

    Args:
        labels: Keys of ``METHODS``.
        rounds: Timed steps of each method.
        console: Receives progress.
        batch: Rows of a step.

    Returns:
        Seconds of every timed step, by label, round by round; and the limits by label.
    """
    workloads = {label: Workload(label, batch=batch) for label in labels}
    samples: dict[str, list[float]] = {label: [] for label in labels}
    order, floor = random.Random(0), Floor()
    for number in track(range(WARM_UP + rounds), "rounds", console=console, transient=True):
        for label in order.sample(labels, len(labels)):
            start = time.perf_counter()
            workloads[label].sample()
            elapsed = (time.perf_counter() - start) / STEPS.get(label, 1)
            if number >= WARM_UP:
                samples[label].append(elapsed)
        if number >= WARM_UP:
            floor.sample(workloads["plain"])
    return samples, floor.limits(workloads)


class Clock(TrainerCallback):
    """Record when each step ends."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.ends.append(time.perf_counter())


def trainer_step(arm: str, rows: list[dict[str, Any]]) -> float:
    """Train on rows of mixed lengths and return the mean seconds of a step.

    Args:
        arm: `STOCK`, `GROUPED` or `OURS`.
        rows: Unpadded rows.
    """
    torch.manual_seed(0)
    clock, model = Clock(), minilm()
    kind = RobustTrainer if arm == OURS else Trainer
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=BATCH,
            num_train_epochs=1,
            train_sampling_strategy="group_by_length" if arm == GROUPED else "random",
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        kind(model, arguments, train_dataset=rows, data_collator=padded, callbacks=[clock]).train()
    # The first step sets up the optimizer's state.
    return (clock.ends[-1] - clock.ends[0]) / (len(clock.ends) - 1)


def padded(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Pad rows to the longest of their batch."""
    ids = [item["input_ids"] for item in items]
    return {
        "input_ids": torch.nn.utils.rnn.pad_sequence(ids, batch_first=True),
        "attention_mask": torch.nn.utils.rnn.pad_sequence(
            [torch.ones_like(each) for each in ids], batch_first=True
        ),
        "labels": torch.tensor([item["labels"] for item in items]),
    }


def trainer_rounds(rounds: int) -> dict[str, list[float]]:
    """Time the Trainers alternately, with an epoch of the same rows each.

    Args:
        rounds: Number of epochs of each.

    Returns:
        Seconds of a step, by Trainer, round by round.
    """
    draws, order = torch.Generator().manual_seed(0), random.Random(0)
    low, high = (torch.tensor(float(each)).log() for each in LENGTHS)
    fractions = torch.rand(BATCH * TRAINER_STEPS, generator=draws)
    rows = [
        {
            "input_ids": torch.randint(1000, 30000, (int(size),), generator=draws),
            "labels": int(torch.randint(CLASSES, (), generator=draws)),
        }
        for size in (low + fractions * (high - low)).exp()
    ]
    arms = [STOCK, GROUPED, OURS]
    samples: dict[str, list[float]] = {arm: [] for arm in arms}
    for _ in range(rounds):
        for arm in order.sample(arms, len(arms)):
            samples[arm].append(trainer_step(arm, rows))
    return samples


def summary(samples: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """Reduce samples to medians and ratios over plain.

    Args:
        samples: Seconds by label; the n-th samples of all labels belong to one round.

    Returns:
        By label: ``median`` in seconds, ``over_plain`` as the ratio of medians, and
            ``middle_half``, the quartiles of the ratio by round.
    """
    base = statistics.median(samples["plain"])
    result = {}
    for label, seconds in samples.items():
        beside = samples["plain"][: len(seconds)]
        paired = sorted(own / other for own, other in zip(seconds, beside, strict=True))
        quartiles = statistics.quantiles(paired, n=4) if len(paired) > 1 else paired * 3
        result[label] = {
            "median": statistics.median(seconds),
            "over_plain": statistics.median(seconds) / base,
            "middle_half": [quartiles[0], quartiles[2]],
            "at_most": TARGETS.get(label),
        }
    return result


def main() -> None:
    """Time every method, print the table and write ``results/NAME.json``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=40, help="timed steps of each method")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--batch", type=int, default=BATCH, help="rows of a step")
    parser.add_argument("--name", default="step_cost", help="name of the file in results/")
    parser.add_argument(
        "--trainers", type=int, default=3, help="rounds of the Trainers; 0 skips them"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    console = Console()
    labels = ["plain", *(label for label in arguments.methods if label != "plain")]
    samples: list[dict[str, list[float]]] = []
    results: dict[str, dict[str, Any]] = {}
    limits: dict[str, float] = {}
    for first in range(1, max(len(labels), 2), TOGETHER):
        group = ["plain", *labels[first : first + TOGETHER]]
        timed, floors = rounds_of(
            group, rounds=arguments.rounds, console=console, batch=arguments.batch
        )
        samples.append(timed)
        limits |= floors
        results = {**summary(samples[-1]), **results}
        # A stepper and its model reference each other, so only the collector frees them.
        gc.collect()
    results = {label: {**results[label], "limit": limits[label]} for label in labels}
    table = Table(title=f"One training step, median of {arguments.rounds} interleaved rounds")
    columns = ("method", "milliseconds", "over plain", "middle half", "limit", "over limit")
    for column in (*columns, "at most"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for label, row in results.items():
        low, high = row["middle_half"]
        table.add_row(
            label,
            f"{row['median'] * 1e3:.1f}",
            f"{row['over_plain']:.2f}",
            f"{low:.2f} to {high:.2f}",
            f"{row['limit']:.2f}",
            f"{row['over_plain'] / row['limit']:.2f}",
            f"{row['at_most']:.2f}" if row["at_most"] else "",
        )
    console.print(table)
    trainers = trainer_rounds(arguments.trainers) if arguments.trainers else {}
    for arm, seconds in trainers.items():
        ratio = statistics.median(seconds) / statistics.median(trainers[STOCK])
        took = f"{statistics.median(seconds) * 1e3:.1f} milliseconds per step"
        console.print(f"{arm}: {took}, {ratio:.2f} of the stock Trainer's (mixed lengths)")
    result = {
        "workload": Workload.describe(arguments.batch),
        "rounds": arguments.rounds,
        "methods": results,
        "trainers": trainers,
        "samples": samples,
    }
    console.print(f"Written to {write(arguments.name, result)}")


if __name__ == "__main__":
    main()
