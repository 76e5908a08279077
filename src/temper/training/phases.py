"""Epochs of two phases: every batch of labelled rows, then every batch of unlabelled ones.

Each phase has the batches that its dataset would have by itself, on every process alike, so that
no batch mixes the two and the labelled ones come as they do without the others. No optimiser step
mixes them either: a short last one of the first phase is filled up with empty batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch.utils.data import Dataset, Sampler

from temper.data.batches import pack_steps

LABELS = ("labels", "label")
# What a loader is made with besides its rows, their order and the collator.
LOADING = (
    "num_workers",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "in_order",
)


class Phases(Sampler[list[int]]):
    """The batches of one dataset and then those of another, as row numbers of both together.

    Args:
        labelled: Batches of row numbers of the first dataset, the same ones each time it is
            iterated at one epoch.
        unlabelled: The same for the second, whose numbers begin at 0.
        offset: Rows of the first dataset, where the numbers of the second begin here.
        accumulation: Micro-batches of an optimiser step.
        followers: What must hear of a new epoch, by ``set_epoch``.

    Example:
        >>> list(Phases([[0, 1], [2]], [[1, 0]], offset=3))
        [[0, 1], [2], [4, 3]]
        >>> list(Phases([[0], [1], [2]], [[1], [0]], offset=3, accumulation=2))
        [[0], [1], [], [2], [4], [3]]
    """

    def __init__(
        self,
        labelled: Iterable[list[int]],
        unlabelled: Iterable[list[int]],
        *,
        offset: int,
        accumulation: int = 1,
        followers: Sequence[Any] = (),
    ) -> None:
        self.labelled, self.unlabelled = labelled, unlabelled
        self.offset = offset
        self.accumulation = accumulation
        self.followers = list(followers)
        self._alone = False

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0; the next iteration follows its order in both phases."""
        for follower in self.followers:
            follower.set_epoch(epoch)

    @contextmanager
    def labelled_alone(self) -> Iterator[None]:
        """Leave the second phase out inside this context, as a pre-pass needs it."""
        self._alone = True
        try:
            yield
        finally:
            self._alone = False

    def __len__(self) -> int:
        """Return the number of batches, empty ones among them."""
        first: Any = self.labelled
        second: Any = self.unlabelled
        if self._alone:
            return len(first)
        steps = -(-len(first) // self.accumulation)
        return steps * self.accumulation + len(second)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield every batch."""
        if self._alone:
            yield from self.labelled
            return
        for step in pack_steps(self.labelled, size=self.accumulation):
            yield from step
        for batch in self.unlabelled:
            yield [self.offset + row for row in batch]


class BothRows(Dataset[tuple[int, Any]]):
    """Two datasets of numbered rows, the second's numbers following the first's.

    Args:
        labelled: As `temper.training.rows.NumberedRows`.
        unlabelled: The same.
    """

    def __init__(self, labelled: Any, unlabelled: Any) -> None:
        self.labelled, self.unlabelled = labelled, unlabelled

    def __len__(self) -> int:
        """Return the number of rows of both."""
        return len(self.labelled) + len(self.unlabelled)

    def __getitem__(self, place: int) -> tuple[int, Any]:
        """Return a row with its number."""
        offset = len(self.labelled)
        if place < offset:
            numbered: tuple[int, Any] = self.labelled[place]
            return numbered
        return place, self.unlabelled[place - offset][1]


class BothCollators:
    """Collate a batch as its dataset's rows are collated; unlabelled rows lose their labels.

    Args:
        labelled: Collator of the first dataset's numbered rows.
        unlabelled: Collator of the second's.
        offset: The first number of the second's rows.
    """

    def __init__(
        self,
        labelled: Callable[[Sequence[Any]], Mapping[str, Any]],
        unlabelled: Callable[[Sequence[Any]], Mapping[str, Any]],
        *,
        offset: int,
    ) -> None:
        self.labelled, self.unlabelled, self.offset = labelled, unlabelled, offset

    def __call__(self, items: Sequence[tuple[int, Any]]) -> dict[str, Any]:
        """Collate rows of one dataset; of no rows nothing."""
        if not items:
            return {}
        if items[0][0] < self.offset:
            return dict(self.labelled(items))
        batch = self.unlabelled(items)
        return {name: value for name, value in batch.items() if name not in LABELS}


def join(
    labelled: Any, unlabelled: Any, *, samplers: Sequence[Any], accumulation: int = 1
) -> tuple[Any, Phases]:
    """Make one loader of two that Accelerate has prepared, shares of the processes included.

    Args:
        labelled: Loader of the first dataset's numbered rows; its way of loading is taken.
        unlabelled: The same of the second's.
        samplers: Samplers behind both whose order follows the epoch; None for one without.
        accumulation: Micro-batches of an optimiser step.

    Returns:
        The loader and the order of its batches.
    """
    rows = BothRows(labelled.dataset, unlabelled.dataset)
    offset = len(labelled.dataset)
    phases = Phases(
        labelled.batch_sampler,
        unlabelled.batch_sampler,
        offset=offset,
        accumulation=accumulation,
        # Accelerate reaches its own samplers, and not ours behind the shares of several processes.
        followers=[labelled, unlabelled, *(each for each in samplers if each is not None)],
    )
    collator = BothCollators(labelled.collate_fn, unlabelled.collate_fn, offset=offset)
    return loader_like(labelled, rows, order=phases, collator=collator), phases


def loader_like(loader: Any, rows: Any, *, order: Any, collator: Any) -> Any:
    """Make a loader of other batches that loads as one that Accelerate has prepared.

    Args:
        loader: The prepared one.
        rows: What to load from.
        order: Batches of row numbers; those of this process alone.
        collator: Makes a batch of rows.
    """
    # Accelerate's class, which knows nothing of shares: the order has taken its own.
    return type(loader)(
        rows,
        device=loader.device,
        rng_types=loader.rng_types,
        synchronized_generator=loader.synchronized_generator,
        _non_blocking=loader._non_blocking,
        batch_sampler=order,
        collate_fn=collator,
        **{name: getattr(loader, name) for name in LOADING},
    )
