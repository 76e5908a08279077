"""Distillation: the predictions of a teacher are learned beside the labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from temper.errors import DataError
from temper.forward.consistency import average_of, clean_logits
from temper.forward.stage import Part, Stage
from temper.functional.losses import distillation, squared_difference
from temper.models.modes import in_mode
from temper.types import LossTerms, Term

TEACHER_RULE = "teacher"


@dataclass(frozen=True)
class Distillation(Part):
    """Learn a teacher's predictions: ``weight * T^2 KL(teacher_T || student_T)``, a mean over rows.

    The teacher is another model, whose answers come with the batch (``teacher_logits``), or the
    average of the network's own weights without dropout. No gradient flows through it. Of a
    regression it is the squared difference of the values.

    Args:
        weight: Of the term.
        temperature: T, above 0.
        teachers: Folders of the models that answer; none for the network's own average.

    References:
        Hinton et al., arXiv 1503.02531; Tarvainen and Valpola, NeurIPS 2017 (mean teacher).
    """

    weight: float
    temperature: float = 1.0
    teachers: tuple[str, ...] = ()

    terms = ("distillation",)
    joint = True
    reads_labels = False

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """The rule that keeps the average, where that is the teacher."""
        return frozenset(() if self.teachers else {TEACHER_RULE})

    def losses(self, stage: Stage) -> Iterator[LossTerms]:
        """Yield the term."""
        logits, _ = clean_logits(stage)
        teacher = self._given(stage, logits) if self.teachers else self._averaged(stage)
        labels = stage.batch.labels
        regression = logits.shape[-1] == 1 if labels is None else labels.is_floating_point()
        if regression:
            rows = squared_difference(logits, teacher)
        else:
            rows = distillation(logits, teacher, temperature=self.temperature)
        yield LossTerms.of([Term("distillation", rows, self.weight, logits=(logits,))])

    def _given(self, stage: Stage, logits: Tensor) -> Tensor:
        teacher = stage.batch.teacher
        if teacher is None or teacher.shape != logits.shape:
            came = "none" if teacher is None else f"shape {list(teacher.shape)}"
            raise DataError(
                f"The method learns from the answers of {len(self.teachers)} models, which a batch "
                f"brings as 'teacher_logits' {list(logits.shape)}, and came with {came}. "
                "`temper train` asks the models; for a loop or a Trainer of your own use "
                "temper.training.distilling.teacher_logits."
            )
        return teacher.to(logits.dtype)

    def _averaged(self, stage: Stage) -> Tensor:
        # Before the first step there is no average, and the weights themselves stand for it.
        weights = average_of(stage, TEACHER_RULE) or None
        network = stage.network
        with torch.no_grad(), in_mode(network.model, training=False):
            return network.logits(stage.batch, weights=weights, wrapped=False)
