"""Decide which rows share a batch: those of like length; an epoch still sees every row once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler

from temper.errors import SettingError
from temper.seeding import derive_seed, generator

# Batches sorted together. More means less padding and batches that are more alike from epoch to
# epoch.
POOL = 50


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise SettingError(f"`batch_size` must be >= 1, got {batch_size}.")


class LengthBucketSampler(Sampler[int]):
    """Order all rows anew each epoch so that each run of ``batch_size`` rows has like lengths.

    The order is a function of seed and epoch alone: shuffle the rows; set the last ``len %
    batch_size`` aside as the short last batch; sort the others by length within pools of `POOL`
    batches; shuffle the batches.

    Args:
        lengths: Tokens of each row.
        batch_size: Rows of a batch, >= 1; give the data loader the same.
        seed: Any integer.

    Raises:
        SettingError: If ``batch_size`` is below 1.

    Example:
        >>> sampler = LengthBucketSampler([5, 1, 4, 2, 3], batch_size=2, seed=0)
        >>> sorted(sampler)
        [0, 1, 2, 3, 4]
    """

    def __init__(self, lengths: Sequence[int], *, batch_size: int, seed: int) -> None:
        _check_batch_size(batch_size)
        self.lengths = list(lengths)
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0; the next iteration follows its order."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        """Yield every row once."""
        draw = generator(derive_seed(self.seed, "batches", self.epoch))
        order: list[int] = torch.randperm(len(self.lengths), generator=draw).tolist()
        full = len(order) - len(order) % self.batch_size
        batches: list[list[int]] = []
        for start in range(0, full, POOL * self.batch_size):
            pool = order[start : min(start + POOL * self.batch_size, full)]
            # The sort is stable, so rows of equal length stay shuffled.
            pool.sort(key=self.lengths.__getitem__)
            batches += _runs(pool, self.batch_size)
        for place in torch.randperm(len(batches), generator=draw).tolist():
            yield from batches[place]
        yield from order[full:]


def ordered_batches(lengths: Sequence[int], *, batch_size: int) -> list[list[int]]:
    """Group rows for evaluation, longest first, so that too large a batch fails at once.

    Args:
        lengths: Tokens of each row.
        batch_size: Rows of a batch, >= 1.

    Returns:
        Positions of the rows of each batch; every row once.

    Raises:
        SettingError: If ``batch_size`` is below 1.

    Example:
        >>> ordered_batches([1, 3, 2], batch_size=2)
        [[1, 2], [0]]
    """
    _check_batch_size(batch_size)
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    return _runs(order, batch_size)


def _runs(order: list[int], size: int) -> list[list[int]]:
    return [order[start : start + size] for start in range(0, len(order), size)]
