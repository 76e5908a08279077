"""The loader of the training rows: one dataset, labeled and unlabeled rows, or several tasks.

Labeled and unlabeled rows: an epoch has every batch of labeled rows, then every batch of
unlabeled ones. No batch and no optimizer step mixes the two: an incomplete last step of the labeled
rows is filled up with empty batches. The batches of labeled rows do not depend on the unlabeled
ones.

Several tasks: the steps of all tasks are shuffled together (Liu et al. 2019, arXiv 1901.11504,
algorithm 1: the rows of each task are packed into mini-batches, and the mini-batches of all tasks
are merged and shuffled, so that tasks come in proportion to their size). Their mini-batch is an
optimizer step here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch.utils.data import BatchSampler, ConcatDataset, Dataset, IterableDataset, Sampler

from temper.data.batches import EvenBatches, pack_steps
from temper.errors import DataError, SettingError
from temper.seeding import derive_seed, generator

ROW = "row_index"
TASK = "task"
"""Name of the batch entry with the task number of each row, [B]."""

LABELS = ("labels", "label")
# Arguments of a loader other than its rows, their order and the collator.
LOADING = (
    "num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context",
    "generator", "prefetch_factor", "persistent_workers", "in_order",
)  # fmt: skip


class NumberedRows(Dataset[tuple[int, Any]]):
    """A map-style dataset that adds the row number to each item."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return index, self.rows[index]


class RowKeeper:
    """Wraps the user's collator and adds the row numbers to its batches."""

    def __init__(self, collator: Callable[[list[Any]], Mapping[str, Any]]) -> None:
        self.collator = collator

    def __call__(self, items: Sequence[tuple[int, Any]]) -> dict[str, Any]:
        """Collate the items without their numbers, and add the numbers."""
        numbers = torch.tensor([number for number, _ in items])
        try:
            batch = self.collator([item for _, item in items])
        except (TypeError, ValueError, RuntimeError, LookupError) as error:
            for number, item in items:
                if fault := _fault_of(item):
                    raise DataError(f"Row {number} of train_dataset {fault}") from error
            raise
        return {**batch, ROW: numbers}


def _fault_of(item: Any) -> str:
    """Return a common reason why a row cannot be collated; empty if none applies."""
    if not isinstance(item, Mapping):
        return ""
    if "input_ids" not in item:
        return f"has no input_ids; it has {', '.join(map(str, item))}. Tokenize the texts first."
    label = next((item[name] for name in LABELS if name in item), 0)
    if label is None or isinstance(label, str):
        return f"has the label {label!r:.40}, which is not a number. Give every row a class index."
    return ""


def countable(dataset: Any) -> bool:
    """Return whether a dataset has a length and access by index; a stream does not."""
    # PyTorch defines item access for every dataset, even streams.
    return (
        not isinstance(dataset, IterableDataset)
        and hasattr(dataset, "__len__")
        and hasattr(dataset, "__getitem__")
    )


def token_counts(dataset: Any, *, column: str = "") -> Sequence[int] | None:
    """Return the number of tokens of each row; None if it is unknown.

    It is read from the dataset's ``lengths`` or from a ``column``, else counted row by row.

    Example:
        >>> token_counts([{"input_ids": [1, 2]}, {"input_ids": [1]}])
        [2, 1]
    """
    lengths: Sequence[int] | None = getattr(dataset, "lengths", None)
    if lengths is not None:
        return lengths
    if not countable(dataset) or not len(dataset):
        return None
    if column and column in getattr(dataset, "column_names", ()):
        return list(dataset[column])
    if not isinstance(dataset[0], Mapping) or "input_ids" not in dataset[0]:
        return None
    if hasattr(dataset, "column_names"):
        return [len(ids) for ids in dataset["input_ids"]]
    return [len(dataset[index]["input_ids"]) for index in range(len(dataset))]


class TaskRows(ConcatDataset[Any]):
    """The rows of several tasks, one task after the other, in the order of the model's tasks.

    Example:
        >>> rows = TaskRows({"rte": ["a", "b"], "cola": ["c"]})
        >>> len(rows), rows[2]
        (3, 'c')
    """

    def __init__(self, parts: Mapping[str, Any]) -> None:
        bad = [name for name, rows in parts.items() if not countable(rows) or not len(rows)]
        if bad or not parts:
            which = f"and {bad[0]!r} has none" if bad else "and there is no task"
            raise SettingError(f"Every task must have rows that can be counted, {which}.")
        super().__init__(parts.values())
        self.parts = dict(parts)

    @property
    def truncated(self) -> float:
        return float(sum(part.truncated * len(part) for part in self.parts.values())) / len(self)

    @property
    def unknown(self) -> float:
        """Mean of the tasks' fractions of unknown tokens, by their rows, in [0, 1]."""
        return float(sum(part.unknown * len(part) for part in self.parts.values())) / len(self)

    def set_epoch(self, epoch: int) -> None:
        for rows in self.parts.values():
            if hasattr(rows, "set_epoch"):
                rows.set_epoch(epoch)


class JoinedBatches(Sampler[list[int]]):
    """A batch sampler over several concatenated datasets; no optimizer step mixes datasets.

    An incomplete last step of a dataset is filled up with empty batches. The order depends only on
    seed and epoch.

    Args:
        parts: For each dataset its batches of row numbers from 0; iterated again in one epoch, it
            must yield the same batches.
        sizes: Number of rows of each dataset.
        seed: Seed to shuffle the steps of all datasets in each epoch; None takes one dataset after
            the other.
        accumulation: Micro-batches of an optimizer step.
        followers: Samplers and loaders whose ``set_epoch`` is called with each new epoch.

    Example:
        >>> list(JoinedBatches([[[0], [1], [2]], [[1], [0]]], sizes=[3, 2], accumulation=2))
        [[0], [1], [], [2], [4], [3]]
        >>> sorted(JoinedBatches([[[0, 1], [2]], [[0]]], sizes=[3, 1], seed=0))
        [[0, 1], [2], [3]]
    """

    def __init__(
        self,
        parts: Sequence[Any],
        *,
        sizes: Sequence[int],
        seed: int | None = None,
        accumulation: int = 1,
        followers: Sequence[Any] = (),
    ) -> None:
        self.parts, self.offsets = parts, [0, *accumulate(sizes)]
        self.seed, self.accumulation, self.followers = seed, accumulation, followers
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, from 0, which determines the order of the next iteration."""
        self.epoch = epoch
        for follower in self.followers:
            follower.set_epoch(epoch)

    @contextmanager
    def first_alone(self) -> Iterator[None]:
        parts, self.parts = self.parts, self.parts[:1]
        try:
            yield
        finally:
            self.parts = parts

    def __len__(self) -> int:
        # Empty batches count.
        return sum(-(-len(part) // self.accumulation) for part in self.parts) * self.accumulation

    def __iter__(self) -> Iterator[list[int]]:
        steps = [
            [[offset + row for row in batch] for batch in step]
            for offset, part in zip(self.offsets, self.parts, strict=False)
            for step in pack_steps(part, size=self.accumulation)
        ]
        order: Sequence[int] = range(len(steps))
        if self.seed is not None:
            draw = generator(derive_seed(self.seed, "tasks", self.epoch))
            order = torch.randperm(len(steps), generator=draw).tolist()
        for index in order:
            yield from steps[index]


def _collated(
    items: Sequence[tuple[int, Any]], *, collators: Sequence[Any], ends: Sequence[int], tasks: bool
) -> dict[str, Any]:
    """Collate rows of one dataset: add its task number, or remove labels of unlabeled rows."""
    if not items:
        return {}
    part = bisect_right(ends, items[0][0])
    batch = dict(collators[part](items))
    if tasks:
        return {**batch, TASK: torch.full((len(items),), part)}
    return {name: value for name, value in batch.items() if not part or name not in LABELS}


def join(
    loaders: Sequence[tuple[Any, Any]], *, seed: int | None = None, accumulation: int = 1
) -> tuple[Any, JoinedBatches]:
    """Join the loaders of several datasets into one, on each process.

    Args:
        loaders: For each dataset, the loader of its numbered rows, prepared by Accelerate, and its
            sampler with ``set_epoch``, or None. Workers and pinned memory are as in the first
            loader.
        seed: Seed to shuffle the steps of several tasks, the same on every process. None means two
            datasets: labeled rows, then unlabeled rows, whose labels are removed.
        accumulation: Micro-batches of an optimizer step.

    Returns:
        The loader and the order of its batches.
    """
    first = loaders[0][0]
    rows: ConcatDataset[Any] = ConcatDataset([loader.dataset.rows for loader, _ in loaders])
    order = JoinedBatches(
        [loader.batch_sampler for loader, _ in loaders],
        sizes=[len(loader.dataset) for loader, _ in loaders],
        seed=seed,
        accumulation=accumulation,
        # Accelerate calls `set_epoch` on samplers that it made, but not on wrapped ones.
        followers=[item for pair in loaders for item in pair if item is not None],
    )
    collators = [loader.collate_fn for loader, _ in loaders]
    collate = partial(
        _collated, collators=collators, ends=rows.cumulative_sizes, tasks=seed is not None
    )
    # Accelerate's class, but without its split between processes: the sampler has made it.
    loader = type(first)(
        NumberedRows(rows),
        device=first.device,
        rng_types=first.rng_types,
        synchronized_generator=first.synchronized_generator,
        _non_blocking=first._non_blocking,
        batch_sampler=order,
        collate_fn=collate,
        **{name: getattr(first, name) for name in LOADING},
    )
    return loader, order


def split_evenly(loader: Any) -> None:
    """Split an incomplete last batch between processes, instead of repeating rows to fill it up."""
    shard: Any = getattr(loader, "batch_sampler", None)
    inner = getattr(shard, "batch_sampler", None)
    # With one process, and for other batches of Accelerate, nothing changes.
    if type(inner) is not BatchSampler or getattr(shard, "num_processes", 1) == 1:
        return
    if shard.split_batches or shard.drop_last or not shard.even_batches:
        return
    shard.batch_sampler = EvenBatches(inner, processes=shard.num_processes)
    # Without a batch size, Accelerate does not fill up short batches.
    shard.batch_size = None


def training_loader(
    trainer: Any, rows: Any, numbered: Callable[[Any], tuple[Any, Any]]
) -> tuple[Any, Any]:
    """Return the loader of all rows of a `RobustTrainer`, and its sampler.

    ``numbered`` returns both for one dataset. The sampler has ``set_epoch``, or is None.
    """
    seed, parts = None, [rows, trainer.unlabeled_dataset]
    if isinstance(rows, TaskRows):
        seed = trainer.args.data_seed if trainer.args.data_seed is not None else trainer.args.seed
        parts = list(rows.parts.values())
    elif trainer.unlabeled_dataset is None:
        return numbered(rows)
    accumulation = trainer.args.gradient_accumulation_steps
    return join([numbered(part) for part in parts], seed=seed, accumulation=accumulation)
