"""Count the bytes of live tensors, operation by operation."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Ledger(TorchDispatchMode):
    """Record when each tensor storage is allocated and freed, also during backward.

    A storage is counted once, however many views it has. Storages that exist before the context,
    such as the weights, are not counted.

    Args:
        known: Tensors that exist before the context.
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self.events: list[tuple[int, int]] = []
        self.seen: weakref.WeakKeyDictionary[torch.UntypedStorage, int] = (
            weakref.WeakKeyDictionary()
        )
        self.watches: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        for tensor in known:
            self.seen[tensor.untyped_storage()] = -1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and record the storages that it allocates."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.enter(leaf.untyped_storage())
        return result

    def enter(self, storage: torch.UntypedStorage) -> None:
        """Record the allocation of a storage, and arrange that its release is recorded."""
        if storage in self.seen:
            return
        key, size = len(self.watches), storage.nbytes()
        self.seen[storage] = key
        self.events.append((key, size))
        # torch keeps one Python object per storage as long as the storage exists, so the finalizer
        # of that object runs when the memory is freed.
        self.watches[key] = weakref.ref(storage, lambda _: self.events.append((key, -size)))

    def peak(self, *, without: Iterable[Tensor] = (), first: int = 0) -> int:
        """Return the largest number of live bytes.

        Args:
            without: Tensors whose storages do not count, gradients for example.
            first: First event to consider; storages that are live before it count.

        Returns:
            Bytes.
        """
        left_out = {self.seen.get(tensor.untyped_storage(), -1) for tensor in without}
        live = most = 0
        for number, (key, size) in enumerate(self.events):
            if key in left_out:
                continue
            live += size
            if number >= first:
                most = max(most, live)
        return most
