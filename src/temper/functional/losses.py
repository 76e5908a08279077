"""Losses and divergences with one value per row, in fp32 or fp64: nothing is divided by the batch.

Letters: B rows, C classes, K sub-models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

from temper.errors import DataError, SettingError
from temper.functional.precision import at_least_single

Divergence = Literal["js", "sym_kl"]
SMOOTHING_NEEDS_CLASSES = (
    "Label smoothing needs classes, but the labels are numbers (a regression). Leave it out, or "
    "give integer labels."
)


class TaskLoss(Protocol):
    """The task's loss of each row, wherever an objective asks for it: `task_loss` or a user's."""

    def __call__(self, logits: Tensor, labels: Tensor, *, smoothing: float) -> Tensor:
        """Return the losses [B] of logits [B, C]."""


@dataclass(frozen=True)
class GivenLoss:
    """A user's function in place of the task's loss.

    Args:
        function: Takes logits [B, C] and labels [B] and returns one loss a row [B], or their mean,
            which then counts for each of the rows.
    """

    function: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, logits: Tensor, labels: Tensor, *, smoothing: float) -> Tensor:
        """Return the losses [B].

        Raises:
            SettingError: If the function returns anything else, or labels are to be smoothed.
        """
        if smoothing:
            raise SettingError(
                "Label smoothing changes the task's own loss, and a loss function was given in its "
                "place. Leave one of them out."
            )
        rows = len(logits)
        value = self.function(logits, one_label_a_row(logits, labels))
        if not isinstance(value, Tensor) or value.shape not in ((), (rows,)):
            came = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise SettingError(
                f"The loss function must return a scalar or one loss a row [{rows}], got {came}."
            )
        return at_least_single(value).expand(rows)


def one_label_a_row(logits: Tensor, labels: Tensor) -> Tensor:
    """Return labels as [B].

    Args:
        logits: [B, C].
        labels: [B] or [B, 1].

    Raises:
        DataError: If there is not one label for each row of the logits.
    """
    if labels.numel() != len(logits):
        raise DataError(
            f"Expected one label a row, [{len(logits)}], and got labels of shape "
            f"{tuple(labels.shape)}. Texts with one class each or one number each are supported; "
            "several classes a text (multi-label) and labels of tokens are not. Use Transformers' "
            "Trainer for these."
        )
    return labels.reshape(-1)


def task_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    class_weights: Tensor | None = None,
    smoothing: float = 0.0,
    checks_classes: bool | None = None,
) -> Tensor:
    """Compute each row's task loss: cross-entropy for class indices, squared error for floats.

    With smoothing s the target is ``(1 - s) * onehot(y) + s / C``; class weights then weigh each
    class of the target, as torch's ``cross_entropy`` does.

    Args:
        logits: [B, C]; [B, 1] for a regression.
        labels: [B] int64 class indices, or [B] floating targets; [B, 1] is taken as [B].
        class_weights: [C] factors on the rows of each class; not renormalised.
        smoothing: Share of each label that is spread over all classes, in [0, 1].
        checks_classes: Whether labels are looked at that may be none of the classes; None looks at
            those on the CPU alone, because elsewhere the look waits for the device.

    Returns:
        [B] in at least fp32.

    Raises:
        DataError: If the labels and the logits are of different kinds of task, there is not one
            label a row, or a label is none of the classes.
        SettingError: If class weights or smoothing are given for a regression.

    Example:
        >>> task_loss(torch.zeros(1, 2), torch.tensor([1]))
        tensor([0.6931])
    """
    labels = one_label_a_row(logits, labels)
    if labels.is_floating_point():
        if class_weights is not None:
            raise SettingError(
                "Class weights were given, but the labels are numbers (a regression) and have no "
                "classes. Leave the weights out, or give integer labels."
            )
        if smoothing:
            raise SettingError(SMOOTHING_NEEDS_CLASSES)
        if logits.numel() != labels.numel():
            raise DataError(
                f"The labels are numbers (a regression), but the model gives logits of shape "
                f"{tuple(logits.shape)} for {labels.numel()} rows. Give integer labels, or a head "
                "with one output."
            )
        values = at_least_single(logits).reshape(labels.shape)
        return (values - labels.to(values.dtype)).square()
    scores = at_least_single(logits)
    if scores.shape[-1] == 1:
        raise DataError(
            "The labels are class indices, but the model gives one number a row (a regression "
            "head). Give floating point labels, or a head with a logit for every class."
        )
    if checks_classes or (checks_classes is None and labels.device.type == "cpu"):
        check_classes(labels, scores.shape[-1])
    weights = None if class_weights is None else class_weights.to(scores.dtype)
    return cross_entropy(
        scores, labels, weight=weights, reduction="none", label_smoothing=smoothing
    )


class OwnLoss:
    """The task's own loss, `task_loss`; labels on a device are checked in the first batch alone.

    Args:
        class_weights: [C] factors on the rows of each class; None for none.
    """

    def __init__(self, class_weights: Tensor | None = None) -> None:
        self.class_weights = class_weights
        self._checked = False

    def __call__(self, logits: Tensor, labels: Tensor, *, smoothing: float) -> Tensor:
        """Return the losses [B].

        Raises:
            DataError: As `task_loss`.
            SettingError: As `task_loss`.
        """
        first, self._checked = not self._checked, True
        return task_loss(
            logits,
            labels,
            class_weights=self.class_weights,
            smoothing=smoothing,
            checks_classes=first or None,
        )


def check_classes(labels: Tensor, classes: int) -> None:
    """Refuse labels that are none of a model's classes, for which torch's own errors name nothing.

    Args:
        labels: Class indices; -100, which torch's cross-entropy leaves out, is none of them.
        classes: Number of classes.

    Raises:
        DataError: If there is one.
    """
    wrong = labels[((labels < 0) | (labels >= classes)) & (labels != -100)]
    if wrong.numel():
        raise DataError(
            f"Label {int(wrong[0])} is out of range: the model has {classes} classes, so labels "
            f"must lie in 0 to {classes - 1}. Load the model with num_labels set to the number of "
            "classes, or renumber the labels from 0."
        )


def _log_probabilities(logits: Tensor) -> Tensor:
    return log_softmax(at_least_single(logits), -1)


def jensen_shannon(first: Tensor, second: Tensor) -> Tensor:
    """Compute the Jensen-Shannon divergence of each row with the mixture, in [0, ln 2].

    ``JS(P || Q) = (KL(P || M) + KL(Q || M)) / 2`` with ``M = (P + Q) / 2``.

    Args:
        first: Logits [B, C].
        second: Logits [B, C].

    Returns:
        [B] in at least fp32, in nats.

    References:
        UEGR (arXiv 2503.16550), Eq. 4.
    """
    log_p, log_q = _log_probabilities(first), _log_probabilities(second)
    log_m = torch.logaddexp(log_p, log_q) - math.log(2.0)
    halves = log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)
    return 0.5 * halves.sum(-1)


def symmetric_kl(first: Tensor, second: Tensor) -> Tensor:
    """Compute half the sum of both Kullback-Leibler divergences of each row.

    ``symKL(p, q) = (KL(p || q) + KL(q || p)) / 2 = sum_c (p - q)(ln p - ln q) / 2``.

    Args:
        first: Logits [B, C].
        second: Logits [B, C].

    Returns:
        [B] in at least fp32, in nats.

    References:
        R-Drop (NeurIPS 2021), section 2; R-AT (Findings of EMNLP 2022).
    """
    log_p, log_q = _log_probabilities(first), _log_probabilities(second)
    return 0.5 * ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1)


def distillation(student: Tensor, teacher: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Compute how far each row's softened prediction is from a teacher's.

    ``T^2 KL(softmax(t / T) || softmax(z / T))``, whose gradient by z keeps its size as T grows.

    Args:
        student: Logits z [B, C].
        teacher: Logits or log-probabilities t [B, C].
        temperature: T, above 0.

    Returns:
        [B] in at least fp32, in nats.

    References:
        Hinton et al., arXiv 1503.02531, section 2.

    Example:
        >>> distillation(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 0.0]]), temperature=2.0)
        tensor([0.])
    """
    log_p = _log_probabilities(teacher / temperature)
    log_q = _log_probabilities(student / temperature)
    return temperature**2 * (log_p.exp() * (log_p - log_q)).sum(-1)


def squared_difference(first: Tensor, second: Tensor) -> Tensor:
    """Compute the squared difference of two regression outputs, row by row.

    Args:
        first: Values [B, 1].
        second: Values [B, 1].

    Returns:
        [B] in at least fp32.
    """
    return (at_least_single(first) - at_least_single(second)).square().sum(-1)


def pairwise_divergence(
    logits: Sequence[Tensor], *, divergence: Divergence, regression: bool = False
) -> Tensor:
    """Sum a divergence over all pairs of sub-models, row by row.

    ``sum_{l<k} D(P_l || P_k)``; for a regression D is the squared difference.

    Args:
        logits: K tensors [B, C].
        divergence: ``js`` or ``sym_kl``.
        regression: Whether the logits are values and not class scores.

    Returns:
        [B] in at least fp32; zeros for K = 1.

    References:
        UEGR (arXiv 2503.16550), Eq. 4.
    """
    measure = {"js": jensen_shannon, "sym_kl": symmetric_kl}[divergence]
    if regression:
        measure = squared_difference
    total = logits[0].new_zeros(logits[0].shape[0], dtype=torch.float32)
    for later in range(1, len(logits)):
        for earlier in range(later):
            total = total + measure(logits[earlier], logits[later])
    return total
