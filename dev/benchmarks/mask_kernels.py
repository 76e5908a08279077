"""Number of torch operations of the selective update's mask for BERT-base on a GPU.

Run ``python -m dev.benchmarks.mask_kernels``. It needs no GPU: the code path of a GPU runs on the
CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertConfig, BertForSequenceClassification

from temper.functional import masks
from temper.methods.selection import Selective, SelectiveUpdate
from temper.models.network import Network
from temper.seeding import Streams


class Operations(TorchDispatchMode):
    """Count the operations that compute, without views."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


@contextmanager
def as_on_a_gpu(chunk: int = masks.CHUNK_ON_DEVICE) -> Iterator[None]:
    """Use the code path of a GPU: groups of tensors with at most ``chunk`` entries."""
    with (
        patch.object(masks, "wants_few_kernels", lambda _device: True),
        patch.object(masks, "CHUNK_ON_DEVICE", chunk),
    ):
        yield


def main() -> None:
    """Print the number of operations."""
    params = Network(BertForSequenceClassification(BertConfig())).parameters()
    rule = SelectiveUpdate(Selective())
    grads = {name: torch.randn(tensor.shape) for name, tensor in params.tensors.items()}
    state = rule.init(params)
    with as_on_a_gpu(), Operations() as operations:
        rule.transform(grads, params, state, Streams(0))
    print(f"{operations.count} operations for {len(rule.names(params))} tensors")


if __name__ == "__main__":
    main()
