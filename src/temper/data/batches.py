"""Group rows into batches and optimizer steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Sampler

from temper.data.stored import values_at
from temper.errors import SettingError
from temper.seeding import derive_seed, generator

# Number of steps sorted together. A larger pool has less padding and less variation over epochs.
POOL = 50


def _check_batch_size(batch_size: int) -> None:
    # Callers of `predict` may pass any number, and a negative one would drop all rows.
    if batch_size < 1:
        raise SettingError(f"`batch_size` must be >= 1, got {batch_size}.")


class LengthBucketSampler(Sampler[int]):
    """Shuffle the rows in each epoch so that the rows of an optimizer step have similar lengths.

    The order depends only on seed and epoch. All rows are shuffled, and the last ``len %
    batch_size`` rows come last. The others are sorted by length within pools of `POOL` *
    ``batch_size`` rows and cut into steps, whose order is shuffled.

    Args:
        lengths: Number of tokens of each row; read one pool at a time.
        batch_size: Rows of an optimizer step over all micro-batches and processes, >= 1. The data
            loader may use smaller batches.
        drop_last: Whether to leave out the last rows if they do not fill a step.

    Example:
        >>> sampler = LengthBucketSampler([5, 1, 4, 2, 3], batch_size=2, seed=0)
        >>> sorted(sampler)
        [0, 1, 2, 3, 4]
    """

    def __init__(
        self, lengths: Sequence[int], *, batch_size: int, seed: int, drop_last: bool = False
    ) -> None:
        _check_batch_size(batch_size)
        self.lengths = lengths
        self.batch_size = batch_size
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        rows = len(self.lengths)
        return rows - rows % self.batch_size if self.drop_last else rows

    def __iter__(self) -> Iterator[int]:
        draw = generator(derive_seed(self.seed, "batches", self.epoch))
        # int32 takes half the memory and gives the same draws.
        small = torch.int32 if len(self.lengths) < 2**31 else torch.int64
        order: NDArray[Any] = torch.randperm(len(self.lengths), generator=draw, dtype=small).numpy()
        runs, size = len(order) // self.batch_size, self.batch_size
        is_sorted = np.zeros(-(-runs // POOL), dtype=bool)
        for run in torch.randperm(runs, generator=draw).tolist():
            number = run // POOL
            if not is_sorted[number]:
                # Sorted only when needed: the first step then needs the lengths of only one pool.
                pool = order[number * POOL * size : min((number + 1) * POOL, runs) * size]
                # The sort is stable, so rows of equal length stay shuffled.
                pool[:] = pool[np.argsort(values_at(self.lengths, pool), kind="stable")]
                is_sorted[number] = True
            yield from order[run * size : (run + 1) * size].tolist()
        if not self.drop_last:
            yield from order[runs * size :].tolist()


class EvenBatches:
    """Split batches evenly between processes, so that almost no row is repeated in an epoch.

    Accelerate fills up the last batches with rows from the beginning of the epoch. Here each
    process gets about the same number of the remaining rows, and at least one.

    Args:
        batches: A batch sampler; successive batches go to successive processes.

    Example:
        >>> list(EvenBatches([[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]], processes=2))
        [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]
        >>> list(EvenBatches([[0, 1], [2, 3], [4]], processes=2))
        [[0, 1], [2, 3], [4], [0]]
    """

    def __init__(self, batches: Any, *, processes: int) -> None:
        self.batches, self.processes = batches, processes

    def __len__(self) -> int:
        """Return the number of batches of all processes."""
        return -(-len(self.batches) // self.processes) * self.processes

    def __iter__(self) -> Iterator[list[int]]:
        first: list[int] = []
        batches = iter(self.batches)
        while batch := [row for rows in islice(batches, self.processes) for row in rows]:
            first = first or batch
            # Fewer rows than processes: rows of the epoch's first batch are repeated.
            batch += [first[index % len(first)] for index in range(self.processes - len(batch))]
            size, larger = divmod(len(batch), self.processes)
            end = 0
            for process in range(self.processes):
                start, end = end, end + size + (process < larger)
                yield batch[start:end]


def pack_steps(batches: Iterable[list[int]], *, size: int) -> list[list[list[int]]]:
    """Group batches into optimizer steps of ``size`` micro-batches each.

    A short last step begins with empty batches. They must not be last, because processes exchange
    gradients in the last micro-batch of a step.

    Example:
        >>> pack_steps([[0, 1], [2, 3], [4]], size=2)
        [[[0, 1], [2, 3]], [[], [4]]]
    """
    listed = list(batches)
    steps = [listed[start : start + size] for start in range(0, len(listed), size)]
    return [[[]] * (size - len(step)) + step for step in steps]


def ordered_batches(lengths: Sequence[int], *, batch_size: int) -> list[list[int]]:
    """Batch row indices by length, longest first, so that running out of memory happens early.

    Example:
        >>> ordered_batches([1, 3, 2], batch_size=2)
        [[1, 2], [0]]
    """
    _check_batch_size(batch_size)
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
