"""Data structures of a training step: batches, steps and loss terms.

Shape letters, everywhere: B rows of a batch, T tokens, D embedding size, C classes, K passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from temper.errors import CompositionError
from temper.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

Gradients: TypeAlias = "dict[str, Tensor]"
State = dict[str, Any]
Reduction = Literal["mean", "sum"]
TEACHER = "teacher_logits"
"""Key of a collated batch for the teacher's logits, in distillation."""
UNLABELED = -100
"""Label of a unit without a loss, as in torch and Transformers."""
CONTEXT = "context_mask"
"""Key of a collated batch for the mask of tokens where an answer span may start or end."""
Pool = Literal["mean", "max"]
POOLS: tuple[Pool, ...] = ("mean", "max")


@dataclass(frozen=True)
class Windows:
    """How a text that exceeds the model's input length is split into windows.

    Args:
        stride: Tokens that neighboring windows share, >= 0.
        pool: How the windows' logits are pooled into those of the text.
        max_windows: Maximum number of windows, >= 1; the rest of the text is cut.
    """

    stride: int
    pool: Pool = "mean"
    max_windows: int = 8


@dataclass(frozen=True)
class Batch:
    """One micro-batch.

    Args:
        inputs: Keyword arguments of the model's forward (``input_ids [B, T]``, ``attention_mask [B,
            T]`` ...), without labels. Multiple choice has [B, N, T], and texts in windows have [B,
            W, T].
        labels: Class indices [B] (int64), targets [B] (float) for a regression, or the form of
            another head (`temper.heads`); None without labels.
        rows: Index of each row in the training set [B], if known; errors name rows by it.
        teacher: The teacher's logits or log-probabilities [B, C], or values [B, 1] for a
            regression; None without a teacher.
        context: Tokens where an answer span may start or end [B, T], boolean; None allows all.
    """

    inputs: dict[str, Tensor]
    labels: Tensor | None = None
    rows: Tensor | None = None
    teacher: Tensor | None = None
    context: Tensor | None = None

    @classmethod
    def of(cls, inputs: Mapping[str, Any]) -> Batch:
        """Split the output of a collator into model inputs, labels and other fields.

        Args:
            inputs: All keys are model inputs except ``labels`` or ``label``, ``row_index``,
                ``teacher_logits`` and ``context_mask``. ``start_positions`` and ``end_positions``
                [B] become labels [B, 2].
        """
        rest = dict(inputs)
        teacher = rest.pop(TEACHER, None)
        rows = rest.pop("row_index", None)
        labels = rest.pop("labels", None)
        if labels is None:
            labels = rest.pop("label", None)
        if "start_positions" in rest:
            ends = [rest.pop(f"{end}_positions") for end in ("start", "end")]
            labels = torch.stack([end.flatten() for end in ends], 1)
        return cls(rest, labels, rows, teacher, rest.pop(CONTEXT, None))

    @property
    def size(self) -> int:
        return int(next(iter(self.inputs.values())).shape[0])

    @property
    def device(self) -> torch.device:
        return next(iter(self.inputs.values())).device

    @property
    def ids(self) -> Tensor:
        """Token ids [B, T]; the N choices or windows of a row are concatenated, [B, N * T]."""
        return self.inputs["input_ids"].flatten(1)

    @property
    def mask(self) -> Tensor:
        """Whether a token is not padding, shaped as `ids`; all true without an attention mask."""
        mask = self.inputs.get("attention_mask")
        if mask is None:
            return torch.ones_like(self.ids, dtype=torch.bool)
        return mask.bool().flatten(1)

    @property
    def begins(self) -> Tensor:
        """Position of each row's first token that is not padding [B]; padding may come first."""
        return self.mask.int().argmax(-1)

    @property
    def sequences(self) -> tuple[Tensor, Tensor]:
        """Ids and mask as the encoder reads them, [B, T]; with N choices or windows [B * N, T]."""
        length = self.inputs["input_ids"].shape[-1]
        return self.ids.reshape(-1, length), self.mask.reshape(-1, length)

    def take(self, indices: Tensor) -> Batch:
        """Return the rows at the indices [b], in that order."""
        return self._mapped(lambda tensor: tensor[indices])

    def to(self, device: torch.device) -> Batch:
        return self._mapped(lambda tensor: tensor.to(device))

    def repeat(self, copies: int) -> Batch:
        """Repeat the whole batch K times along the rows, [K*B, ...]."""
        if copies == 1:
            return self

        return self._mapped(lambda tensor: tensor.repeat(copies, *[1] * (tensor.dim() - 1)))

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> Batch:
        beside = (self.labels, self.rows, self.teacher, self.context)
        return Batch(
            {name: change(tensor) for name, tensor in self.inputs.items()},
            *(None if tensor is None else change(tensor) for tensor in beside),
        )


@dataclass(frozen=True)
class Step:
    """The optimizer step of a micro-batch, and the counts that its losses are divided by.

    Args:
        number: Optimizer step, from 0.
        units: Units (rows, words ...) of this optimizer step over all micro-batches and
            ranks (N). Losses are divided by it.
        rows: Rows of this optimizer step over all micro-batches and ranks; None if each row is one
            unit.
        ranks: Number of processes (W).
        total: Optimizer steps of the whole run, 0 if unknown.
        loss_scale: Factor by which a loss scaler multiplies losses and gradients.
        skipped: Whether the loss scaler skipped the optimizer's step.
        rates: Parameter name -> (learning rate, weight decay), for update rules that need them.
    """

    number: int = 0
    units: int = 1
    rows: int | None = None
    ranks: int = 1
    total: int = 0
    loss_scale: float = 1.0
    skipped: bool = False
    rates: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def units_per_row(self) -> float:
        """Mean number of units per row in this step."""
        return 1.0 if self.rows is None else max(self.units, 1) / max(self.rows, 1)


@dataclass(frozen=True)
class Term:
    """A named loss term of a micro-batch, with one value per row.

    Args:
        rows: Loss of each row [B], fp32: the sum over its units, without any division.
        reduction: ``mean`` over the units of the optimizer step, or ``sum``: that mean times the
            rows of the step.
        logits: The logits that the term was computed from; their gradient is logged.
    """

    name: str
    rows: Tensor
    weight: float = 1.0
    reduction: Reduction = "mean"
    logits: tuple[Tensor, ...] = ()

    def value(self, step: Step) -> Tensor:
        """Return this micro-batch's part of the weighted loss (methods.md, "Reduction").

        ``W * sum(rows) / N`` for ``mean`` and ``W * sum(rows) * R / N`` for ``sum``, with N units
        and R rows in the step. Distributed training averages over the W ranks, which cancels W.
        With one unit per row R / N is 1. With several, a sum over units would weight a term by text
        length.
        """
        of_mean = self.reduction == "mean"
        # A step may have no labeled unit: its loss is then 0.
        scale = step.ranks / (max(step.units, 1) if of_mean else step.units_per_row)
        return self.rows.sum() * (self.weight * scale)


@dataclass(frozen=True)
class LossTerms:
    """The loss terms whose sum one backward pass differentiates.

    Args:
        diagnostics: Name -> detached scalar to log next to the terms.
        carried: A scalar of value 0 whose gradient is added to weights from which the terms are
            detached.

    Raises:
        CompositionError: Two terms have the same name.
    """

    terms: Sequence[Term]
    diagnostics: Mapping[str, Tensor] = field(default_factory=dict)
    carried: Tensor | None = None

    def __post_init__(self) -> None:
        names = [term.name for term in self.terms]
        if len(set(names)) != len(names):
            raise CompositionError(
                f"Loss terms must have distinct names, got {names}. Rename one of them."
            )

    def __iter__(self) -> Iterator[Term]:
        return iter(self.terms)

    def total(self, step: Step) -> Tensor:
        """Return the scalar to run backward on."""
        values = [term.value(step) for term in self.terms]
        if self.carried is not None:
            values.append(self.carried)
        return sum(values[1:], values[0])
