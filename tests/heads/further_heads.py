"""Heads that only the tests use, with several units per row, to test the contract.

Each is what a file of such a head has to write; losses and divergences are `Classification`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from temper.heads import Classification, Head, Regression
from temper.types import Batch

IGNORED = -100


class Tokens(Classification):
    """A label for each token; -100 is no unit. U = T."""

    name = "tokens"

    def logits(self, output: Any, batch: Batch, *, model: str = "") -> Tensor:
        return output.logits

    def unit_mask(self, batch: Batch, logits: Tensor) -> Tensor:
        assert batch.labels is not None
        return batch.labels != IGNORED

    def units(self, batch: Batch) -> int:
        assert batch.labels is not None
        return int((batch.labels != IGNORED).sum())

    def unit_labels(self, logits: Tensor, labels: Tensor) -> Tensor:
        return labels


class SeveralLabels(Classification):
    """L yes-or-no labels by sigmoid. U = L, C = 2: sigmoid(z) is softmax(0, z)."""

    name = "several_labels"

    def logits(self, output: Any, batch: Batch, *, model: str = "") -> Tensor:
        return torch.stack([torch.zeros_like(output.logits), output.logits], -1)

    def units(self, batch: Batch) -> int:
        assert batch.labels is not None
        return batch.labels.numel()

    def unit_labels(self, logits: Tensor, labels: Tensor) -> Tensor:
        return labels.long()


class Span(Classification):
    """Start and end of an answer. U = 2, C = T: positions off the text are masked."""

    name = "span"

    def logits(self, output: Any, batch: Batch, *, model: str = "") -> Tensor:
        logits = torch.stack([output.start_logits, output.end_logits], 1)
        # -inf would make the divergences NaN: 0 * (-inf + inf).
        lowest = torch.finfo(logits.dtype).min
        return logits.masked_fill(~batch.mask.unsqueeze(1), lowest)

    def units(self, batch: Batch) -> int:
        return 2 * batch.size

    def unit_labels(self, logits: Tensor, labels: Tensor) -> Tensor:
        return labels


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
NAMES = ("classification", "regression", "tokens", "several_labels", "span")


def case_of(name: str, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Case:
    draws = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return (3 * torch.randn(*shape, generator=draws, dtype=torch.float64)).to(dtype)

    def classes(*shape: int, count: int = CLASSES) -> Tensor:
        return torch.randint(count, shape, generator=draws)

    mask = torch.ones(ROWS, TOKENS, dtype=torch.long)
    mask[1, 4:] = 0
    head: Head
    if name == "tokens":
        head, labels, shapes = Tokens(), classes(ROWS, TOKENS), {"logits": (ROWS, TOKENS, CLASSES)}
        labels[mask == 0] = IGNORED
        labels[:, 0] = IGNORED
    elif name == "several_labels":
        head, labels, shapes = SeveralLabels(), classes(ROWS, 5, count=2), {"logits": (ROWS, 5)}
    elif name == "span":
        positions = {"start_logits": (ROWS, TOKENS), "end_logits": (ROWS, TOKENS)}
        head, labels, shapes = Span(), classes(ROWS, 2, count=4), positions
    elif name == "regression":
        head, labels, shapes = Regression(), normal(ROWS), {"logits": (ROWS, 1)}
    else:
        head, labels, shapes = Classification(), classes(ROWS), {"logits": (ROWS, CLASSES)}
        labels[2] = IGNORED
    batch = Batch({"input_ids": torch.ones_like(mask), "attention_mask": mask}, labels)
    passes = (
        SimpleNamespace(**{each: normal(*shape) for each, shape in shapes.items()})
        for _ in range(2)
    )
    return Case(head, batch, *passes)
