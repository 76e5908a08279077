"""A batch for each head, and the logits of a model for it."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from temper.heads import HEADS, UNLABELED, Head
from temper.types import Batch


@dataclass(frozen=True)
class Case:
    """A batch of B rows with a model's outputs for it.

    Args:
        head: The head.
        batch: With labels.
        output: What the model returns.
        other: What it returns in another pass.
    """

    head: Head
    batch: Batch
    output: Any
    other: Any

    def logits(self) -> tuple[Tensor, Tensor]:
        first, second = (self.head.logits(each, self.batch) for each in (self.output, self.other))
        return first, second

    def take(self, rows: Tensor) -> Case:
        """Return the case of some rows."""
        output, other = (
            SimpleNamespace(**{name: value[rows] for name, value in vars(each).items()})
            for each in (self.output, self.other)
        )
        return Case(self.head, self.batch.take(rows), output, other)


ROWS, TOKENS, CLASSES = 4, 6, 3
NAMES = tuple(HEADS)


def case_of(name: str, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Case:
    draws = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return (3 * torch.randn(*shape, generator=draws, dtype=torch.float64)).to(dtype)

    def classes(*shape: int, count: int = CLASSES) -> Tensor:
        return torch.randint(count, shape, generator=draws)

    mask = torch.ones(ROWS, TOKENS, dtype=torch.long)
    mask[1, 4:] = 0
    if name == "tokens":
        labels, shapes = classes(ROWS, TOKENS), {"logits": (ROWS, TOKENS, CLASSES)}
        labels[mask == 0] = UNLABELED
        labels[:, 0] = UNLABELED
    elif name == "multi_label":
        labels, shapes = classes(ROWS, 5, count=2).float(), {"logits": (ROWS, 5)}
        labels[1, 3] = UNLABELED
    elif name == "spans":
        labels = classes(ROWS, 2, count=4)
        shapes = {"start_logits": (ROWS, TOKENS), "end_logits": (ROWS, TOKENS)}
        labels[2, 1] = TOKENS + 3
    elif name == "completions":
        labels, shapes = classes(ROWS, TOKENS), {"logits": (ROWS, TOKENS, CLASSES)}
        labels[mask == 0] = UNLABELED
        labels[:, :2] = UNLABELED
    elif name == "seq2seq":
        labels, shapes = classes(ROWS, 3), {"logits": (ROWS, 3, CLASSES)}
        labels[2, 1:] = UNLABELED
    elif name == "regression":
        labels, shapes = normal(ROWS), {"logits": (ROWS, 1)}
    else:
        labels, shapes = classes(ROWS), {"logits": (ROWS, CLASSES)}
        if name == "classification":
            labels[2] = UNLABELED
    batch = Batch({"input_ids": torch.ones_like(mask), "attention_mask": mask}, labels)
    passes = (
        SimpleNamespace(**{each: normal(*shape) for each, shape in shapes.items()})
        for _ in range(2)
    )
    return Case(HEADS[name](), batch, *passes)
