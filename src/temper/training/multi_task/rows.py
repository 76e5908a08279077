"""Rows of several tasks, and epochs in which the steps of all of them are shuffled together.

Source: Liu et al. 2019, arXiv 1901.11504, algorithm 1: the rows of each task are packed into
mini-batches, and the mini-batches of all tasks are merged and shuffled, so that tasks come in
proportion to their size. The temperature is that of multilingual pre-training (Devlin 2019; Raffel
et al. 2020, equation 1): tasks in proportion to size ** (1 / temperature). A mini-batch of theirs
is an optimiser step here, so that accumulating splits it and changes nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from temper.data.batches import pack_steps
from temper.errors import SettingError
from temper.seeding import derive_seed, generator
from temper.training.phases import loader_like
from temper.training.rows import countable

TASK = "task"
"""Name of the model's input that says which task a batch belongs to, by number [B]."""


class TaskRows(Dataset[Any]):
    """The rows of several tasks, one task after the other.

    Args:
        parts: The rows of each task, by name, in the order of the model's tasks.
        temperature: T >= 1. At 1 (the paper) an epoch has every row of every task once. Above, it
            has as many steps, of which a task has a share in proportion to
            ``steps ** (1 / T)``, at least one; each task still goes through all its rows before
            one comes again, over as many epochs as that takes.

    Raises:
        SettingError: If there are no tasks, one has no rows or is a stream, or T is below 1.

    Example:
        >>> rows = TaskRows({"rte": ["a", "b"], "cola": ["c"]})
        >>> len(rows), rows[2]
        (3, 'c')
    """

    def __init__(self, parts: Mapping[str, Any], *, temperature: float = 1.0) -> None:
        if not temperature >= 1:
            raise SettingError(
                f"`temperature` must be >= 1, got {temperature}. Use 1 for no effect."
            )
        bad = [name for name, rows in parts.items() if not countable(rows) or not len(rows)]
        if bad or not parts:
            which = f"and {bad[0]!r} has none" if bad else "and there is no task"
            raise SettingError(f"Every task must have rows that can be counted, {which}.")
        self.parts = dict(parts)
        self.temperature = temperature
        self.ends = list(accumulate(len(rows) for rows in self.parts.values()))

    def __len__(self) -> int:
        """Return the number of rows of all tasks."""
        return self.ends[-1]

    def place(self, number: int) -> tuple[int, int]:
        """Return the task's number and the row's within the task.

        Args:
            number: The row's number among all.
        """
        if not 0 <= number < len(self):
            raise IndexError(number)
        task = bisect_right(self.ends, number)
        return task, number - (self.ends[task - 1] if task else 0)

    def __getitem__(self, number: int) -> Any:
        """Return a row as its task's dataset gives it."""
        task, place = self.place(number)
        return list(self.parts.values())[task][place]

    def set_epoch(self, epoch: int) -> None:
        """Tell the epoch, from 0, to rows that differ by it."""
        for rows in self.parts.values():
            if hasattr(rows, "set_epoch"):
                rows.set_epoch(epoch)


class MixedBatches(Sampler[list[int]]):
    """The steps of several tasks, shuffled together anew each epoch; no step mixes tasks.

    The order is a function of seed and epoch alone. A task's short last step is filled up with
    empty batches.

    Args:
        parts: For each task its batches of row numbers, the same ones each time it is iterated at
            one epoch.
        sizes: Rows of each task.
        seed: Any integer.
        temperature: As `TaskRows` says.
        accumulation: Micro-batches of an optimiser step.
        followers: For each task what must hear which of its passes is asked for, by ``set_epoch``.

    Example:
        >>> sorted(MixedBatches([[[0, 1], [2]], [[0]]], sizes=[3, 1], seed=0))
        [[0, 1], [2], [3]]
    """

    def __init__(
        self,
        parts: Sequence[Any],
        *,
        sizes: Sequence[int],
        seed: int,
        temperature: float = 1.0,
        accumulation: int = 1,
        followers: Sequence[Sequence[Any]] | None = None,
    ) -> None:
        self.parts = list(parts)
        self.offsets = [0, *accumulate(sizes)][:-1]
        self.seed = seed
        self.followers = [list(each) for each in followers or [()] * len(self.parts)]
        self.accumulation = accumulation
        self.steps = [-(-len(part) // accumulation) for part in self.parts]
        self.quotas = quotas(self.steps, temperature=temperature)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0; the next iteration follows its order."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches of an epoch, empty ones among them."""
        return sum(self.quotas) * self.accumulation

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the epoch's batches."""
        steps: list[list[list[int]]] = []
        for task, offset in enumerate(self.offsets):
            for step in self._of_epoch(task):
                steps.append([[offset + row for row in batch] for batch in step])
        draw = generator(derive_seed(self.seed, "tasks", self.epoch))
        for place in torch.randperm(len(steps), generator=draw).tolist():
            yield from steps[place]

    def _of_epoch(self, task: int) -> list[list[list[int]]]:
        """Return the part of this epoch in a task's passes, which follow each other endlessly."""
        each, wanted = self.steps[task], self.quotas[task]
        begin = self.epoch * wanted
        found: list[list[list[int]]] = []
        for number in range(begin // each, -(-(begin + wanted) // each)):
            for follower in self.followers[task]:
                follower.set_epoch(number)
            first = number * each
            steps = pack_steps(self.parts[task], size=self.accumulation)
            found += steps[max(begin - first, 0) : begin + wanted - first]
        return found


class _AllRows(Dataset[tuple[int, Any]]):
    """Rows of all tasks with their numbers among all."""

    def __init__(self, rows: TaskRows, parts: Sequence[Any]) -> None:
        self.rows, self.parts = rows, list(parts)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> tuple[int, Any]:
        task, place = self.rows.place(number)
        return number, self.parts[task][place][1]


class _TaskCollator:
    """Collate a batch as its task's rows are collated, and say which task that is."""

    def __init__(self, rows: TaskRows, collators: Sequence[Callable[[Any], Any]]) -> None:
        self.rows, self.collators = rows, list(collators)

    def __call__(self, items: Sequence[tuple[int, Any]]) -> dict[str, Tensor]:
        if not items:
            return {}
        task, _ = self.rows.place(items[0][0])
        return {**self.collators[task](items), TASK: torch.full((len(items),), task)}


def mix(
    loaders: Sequence[tuple[Any, Any]], rows: TaskRows, *, seed: int, accumulation: int = 1
) -> tuple[Any, MixedBatches]:
    """Make one loader of those of several tasks, shares of the processes included.

    Args:
        loaders: For each task the loader of its numbered rows, prepared by Accelerate, and the
            sampler behind it whose order follows the epoch, or None. The first one's way of loading
            is taken.
        rows: The rows of the tasks.
        seed: Seed of the order; the same one on every process.
        accumulation: Micro-batches of an optimiser step.

    Returns:
        The loader and the order of its batches.
    """
    order = MixedBatches(
        [loader.batch_sampler for loader, _ in loaders],
        sizes=[len(part) for part in rows.parts.values()],
        seed=seed,
        temperature=rows.temperature,
        accumulation=accumulation,
        # Accelerate reaches its own samplers, and not ours behind the shares of several processes.
        followers=[[loader, *([sampler] if sampler else [])] for loader, sampler in loaders],
    )
    everything = _AllRows(rows, [loader.dataset for loader, _ in loaders])
    collator = _TaskCollator(rows, [loader.collate_fn for loader, _ in loaders])
    return loader_like(loaders[0][0], everything, order=order, collator=collator), order


def quotas(steps: Sequence[int], *, temperature: float) -> list[int]:
    """Share an epoch's steps out between tasks.

    Args:
        steps: Optimiser steps that each task has, >= 1.
        temperature: T >= 1; the share is in proportion to ``steps ** (1 / T)``.

    Returns:
        Steps of each task in an epoch, at least 1 each; they sum to what there are.

    Example:
        >>> quotas([90, 10], temperature=1.0), quotas([90, 10], temperature=2.0)
        ([90, 10], [75, 25])
    """
    if temperature == 1:
        return list(steps)
    whole, weights = sum(steps), [count ** (1 / temperature) for count in steps]
    exact = [whole * weight / sum(weights) for weight in weights]
    shares = [max(1, int(value)) for value in exact]
    # Tasks below one step have taken from the others.
    while sum(shares) > whole:
        larger = [task for task, share in enumerate(shares) if share > 1]
        shares[max(larger, key=lambda task: shares[task] - exact[task])] -= 1
    while sum(shares) < whole:
        shares[max(range(len(shares)), key=lambda task: exact[task] - shares[task])] += 1
    return shares
