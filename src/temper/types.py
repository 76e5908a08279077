"""The shapes that every layer shares: batches, steps, loss terms.

Shape letters, everywhere: B rows of a batch, T tokens, D embedding size, C classes, K passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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
"""Key of a batch for the outputs of another model."""
UNLABELED = -100
"""Label of a unit without a loss, as in torch and Transformers."""
CONTEXT = "context_mask"
"""Key of the tokens that an answer may start or end at, in a collated batch."""
Pool = Literal["mean", "max"]
POOLS: tuple[Pool, ...] = ("mean", "max")


@dataclass(frozen=True)
class Windows:
    """How a text that is longer than the model reads is split into windows.

    Neighboring windows share ``stride`` >= 0 tokens. Text after ``max_windows`` >= 1 is cut.
    ``pool`` is how the logits of the windows are pooled.
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
        labels: Class indices [B] (int64), targets [B] (float) for a regression, or what another
            head defines (`temper.heads`); None without labels.
        rows: Index of each row in the training set [B], where known; used to name rows in errors.
        teacher: Logits or log-probabilities [B, C] that another model gives the rows, values [B, 1]
            of a regression; None if there is none.
        context: Tokens that an answer may start or end at [B, T], boolean, for spans; None for all.
    """

    inputs: dict[str, Tensor]
    labels: Tensor | None = None
    rows: Tensor | None = None
    teacher: Tensor | None = None
    context: Tensor | None = None

    @classmethod
    def of(cls, inputs: Mapping[str, Any]) -> Batch:
        """Split a collated mapping into model inputs, labels and rows.

        Args:
            inputs: Output of a collator. ``labels`` or ``label``, ``row_index``,
                ``teacher_logits`` and ``context_mask`` are taken out, and ``start_positions`` and
                ``end_positions`` [B] become labels [B, 2].
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
        """Token ids [B, T]; choices or windows of a row follow each other, [B, N * T]."""
        return self.inputs["input_ids"].flatten(1)

    @property
    def mask(self) -> Tensor:
        """Real tokens, boolean, shaped as `ids`; all true if the model takes no attention mask."""
        mask = self.inputs.get("attention_mask")
        if mask is None:
            return torch.ones_like(self.ids, dtype=torch.bool)
        return mask.bool().flatten(1)

    @property
    def begins(self) -> Tensor:
        """First real token of each row [B], because padding may be before or after a row."""
        return self.mask.int().argmax(-1)

    @property
    def sequences(self) -> tuple[Tensor, Tensor]:
        """Ids and mask by sequence that the encoder reads, [B, T]; of N choices [B * N, T]."""
        length = self.inputs["input_ids"].shape[-1]
        return self.ids.reshape(-1, length), self.mask.reshape(-1, length)

    def take(self, indices: Tensor) -> Batch:
        """Return the rows at the indices [b], in that order."""
        return self._mapped(lambda tensor: tensor[indices])

    def to(self, device: torch.device) -> Batch:
        return self._mapped(lambda tensor: tensor.to(device))

    def repeat(self, copies: int) -> Batch:
        """Stack K copies of the batch along the rows, [K*B, ...], pass after pass."""
        if copies == 1:
            return self

        def stack(tensor: Tensor) -> Tensor:
            return tensor.repeat(copies, *[1] * (tensor.dim() - 1))

        return self._mapped(stack)

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> Batch:
        beside = (self.labels, self.rows, self.teacher, self.context)
        return Batch(
            {name: change(tensor) for name, tensor in self.inputs.items()},
            *(None if tensor is None else change(tensor) for tensor in beside),
        )


@dataclass(frozen=True)
class Step:
    """The current step, and the number of units that divides the losses of its micro-batches.

    Args:
        number: Optimizer step, from 0.
        units: Units (rows, words ...) of this optimizer step over all micro-batches and ranks (N),
            which losses are divided by.
        rows: Rows of this optimizer step over all micro-batches and ranks; None if each row is one
            unit.
        ranks: Number of processes (W).
        total: Optimizer steps of the whole run, 0 if unknown.
        loss_scale: Factor of a loss scaler for the losses, and so for the gradients.
        skipped: Whether a loss scaler left the optimizer's step out.
        rates: Learning rate and weight decay by parameter, for rules that ask for them.
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
        """Mean number of units of a row of this step."""
        return 1.0 if self.rows is None else max(self.units, 1) / max(self.rows, 1)


@dataclass(frozen=True)
class Term:
    """A named loss with one value per row.

    Args:
        rows: Loss of each row [B], the sum over its units, fp32, not divided by anything.
        reduction: ``mean`` over the units of the optimizer step, or ``sum``, that mean times the
            rows of the step.
        logits: The logits that it was computed from; the gradient there is logged.
    """

    name: str
    rows: Tensor
    weight: float = 1.0
    reduction: Reduction = "mean"
    logits: tuple[Tensor, ...] = ()

    def value(self, step: Step) -> Tensor:
        """Return this micro-batch's fraction of the weighted loss (methods.md, "Reduction").

        ``W * sum(rows) / N`` for ``mean`` and ``W * sum(rows) * R / N`` for ``sum``, with N units
        and R rows of the step. The average over ranks that distributed training takes cancels W.
        With one unit per row R / N is 1. With several, a sum over units would weigh a term by the
        length of the texts.
        """
        of_mean = self.reduction == "mean"
        # A step may have no labeled unit: its loss is then 0.
        scale = step.ranks / (max(step.units, 1) if of_mean else step.units_per_row)
        return self.rows.sum() * (self.weight * scale)


@dataclass(frozen=True)
class LossTerms:
    """The terms, with distinct names, that one backward pass sums.

    Args:
        diagnostics: Detached scalars to log next to them, by name.
        carried: A scalar that is 0 and has a gradient: what other terms owe to weights that they
            were cut off from.
    """

    terms: tuple[Term, ...]
    diagnostics: Mapping[str, Tensor] = field(default_factory=dict)
    carried: Tensor | None = None

    @classmethod
    def of(
        cls,
        terms: Iterable[Term],
        diagnostics: Mapping[str, Tensor] | None = None,
        carried: Tensor | None = None,
    ) -> LossTerms:
        """Collect terms; two of one name raise `CompositionError`."""
        collected = tuple(terms)
        names = [term.name for term in collected]
        if len(set(names)) != len(names):
            raise CompositionError(
                f"A loss term is present twice: {names}. Terms must have distinct names."
            )
        return cls(collected, diagnostics or {}, carried)

    def __iter__(self) -> Iterator[Term]:
        return iter(self.terms)

    def total(self, step: Step) -> Tensor:
        """Return the scalar to run backward on."""
        values = [term.value(step) for term in self.terms]
        if self.carried is not None:
            values.append(self.carried)
        total = values[0]
        for value in values[1:]:
            total = total + value
        return total
