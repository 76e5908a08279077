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
    """Note when each tensor storage comes to life and when it is freed, during backward too.

    A storage is counted once, whatever views look at it. Storages that live before the block, such
    as the weights, never enter the ledger.

    Args:
        known: Tensors that live before the block.
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
        """Run an operation and enter the storages that it made."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.enter(leaf.untyped_storage())
        return result

    def enter(self, storage: torch.UntypedStorage) -> None:
        """Note a storage's birth, and arrange that its death is noted."""
        if storage in self.seen:
            return
        key, size = len(self.watches), storage.nbytes()
        self.seen[storage] = key
        self.events.append((key, size))
        # torch keeps one Python object per storage for as long as the storage lives, so the end of
        # that object is the end of the memory.
        self.watches[key] = weakref.ref(storage, lambda _: self.events.append((key, -size)))

    def peak(self, *, without: Iterable[Tensor] = (), first: int = 0) -> int:
        """Return the largest number of live bytes.

        Args:
            without: Tensors whose storages do not count, gradients for example.
            first: Event to start watching at; what lived before it counts as live.

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
