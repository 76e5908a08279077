"""Terms: named losses with one value per row, made from logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from temper.errors import DataError
from temper.functional.losses import Divergence, pairwise_divergence
from temper.models.network import Network
from temper.types import Batch, Reduction, Term


def labels_of(batch: Batch) -> Tensor:
    """Return the labels of a batch.

    Args:
        batch: Any batch.

    Raises:
        DataError: If it has none.
    """
    if batch.labels is None:
        raise DataError(
            f"The batch has no labels; it has {sorted(batch.inputs)}. Give them as 'labels' [B]."
        )
    return batch.labels


def task_term(
    network: Network,
    logits: Sequence[Tensor],
    batch: Batch,
    *,
    name: str = "task",
    weight: float = 1.0,
    smoothing: float = 0.0,
) -> Term:
    """Average the task's loss over sub-models: ``1/K sum_k CE(z_k, y)``.

    Args:
        network: Gives the task's loss.
        logits: K tensors [B, C].
        batch: Gives the labels.
        name: Name in logs.
        weight: Weight in the total.
        smoothing: Share of each label that is spread over all classes.

    Returns:
        A term reduced by the mean.
    """
    labels = labels_of(batch)
    rows = [network.task_loss(each, labels, smoothing=smoothing) for each in logits]
    mean = rows[0] if len(rows) == 1 else torch.stack(rows).mean(0)
    return Term(name, mean, weight, logits=tuple(logits))


def divergence_term(
    logits: Sequence[Tensor],
    batch: Batch,
    *,
    divergence: Divergence,
    weight: float,
    reduction: Reduction,
    name: str = "divergence",
) -> Term:
    """Sum a divergence over all pairs of sub-models: ``sum_{l<k} D(P_l || P_k)``.

    Args:
        logits: K tensors [B, C].
        batch: Its labels tell a regression, where D is the squared difference.
        divergence: ``js`` or ``sym_kl``.
        weight: Weight in the total.
        reduction: Over the rows of the optimiser step.
        name: Name in logs.

    Returns:
        A term.
    """
    rows = pairwise_divergence(logits, divergence=divergence, regression=regression(batch, logits))
    return Term(name, rows, weight, reduction, logits=tuple(logits))


def regression(batch: Batch, logits: Sequence[Tensor]) -> bool:
    """Tell whether logits are values: float labels say so, and one output where there are none.

    Args:
        batch: Any batch.
        logits: Tensors [B, C].
    """
    if batch.labels is not None:
        return batch.labels.is_floating_point()
    return logits[0].shape[-1] == 1
