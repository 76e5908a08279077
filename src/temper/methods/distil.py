"""Distillation: learn from a teacher's predictions in addition to the labels.

``L = clean_weight * CE(z, y) + weight * T^2 KL(softmax(t / T) || softmax(z / T))``, with logits z
of the student and t of the teacher, averaged over the rows. A regression uses the squared
difference. The teacher is an ``ensemble`` of trained models, whose mean probabilities are computed
before training. Or it is the ``average`` of the network's own weights (mean teacher).

Source: Hinton et al., arXiv 1503.02531; ensembles of seeds: Allen-Zhu and Li, ICLR 2023; mean
teacher: Tarvainen and Valpola, NeurIPS 2017. Differs: docs/methods/distil.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from temper.backward.averaging import FinalAverage, RunningAverage
from temper.backward.rule import UpdateRule
from temper.errors import DataError
from temper.forward import Losses, Plan, StepContext, plain
from temper.lazy import Tensor, torch
from temper.methods import Method, register
from temper.methods.bounds import Nonnegative, Positive, Rate
from temper.methods.variants import Variant, variant
from temper.models.modes import in_mode
from temper.types import Step, Term

TEACHER_RULE = "teacher"
"""Name of the update rule that averages the weights."""


class OwnAverage(Variant):
    """The network itself at an average of its weights, without dropout."""

    kind: Literal["average"] = "average"
    decay: Rate = Field(
        default=0.999, description="Maximum weight of the previous average in the running average."
    )
    warm_up: Nonnegative = Field(
        default=9.0,
        description="How slowly the weight of the previous average rises to `decay`, as in the "
        "method `ema`. 1: the mean of all steps until `decay` is reached.",
    )
    kept: Literal["student", "teacher"] = Field(
        default="student",
        description="Whether the final weights are those of the `student` or the `teacher`.",
    )


class Ensemble(Variant):
    """Trained models with the same classes, whose mean probabilities are the teacher."""

    kind: Literal["ensemble"] = "ensemble"
    folders: tuple[str, ...] = Field(
        min_length=1,
        description="Folders of the teacher models: runs, or checkpoints of sequence classifiers.",
    )


@register(
    "distil",
    summary="Divergence from a teacher: an average of the model's weights, or trained models",
    cost="4F (of an ensemble 3F, and a pass of each model over the rows once)",
    memory="one copy of the weights (of an ensemble none)",
    paper="Hinton et al., arXiv 1503.02531",
)
class Distil(Method):
    """Settings of distillation."""

    OFF: ClassVar = {"weight": 0.0, "clean_weight": 1.0}

    teacher: OwnAverage | Ensemble = variant(
        OwnAverage(), "`average` of the network's own weights, or `ensemble` of trained models."
    )
    weight: Nonnegative = Field(
        default=1.0, description="Weight of the divergence from the teacher."
    )
    temperature: Positive = Field(
        default=2.0,
        description="Temperature T, by which the logits of student and teacher are divided.",
    )
    clean_weight: Nonnegative = Field(default=1.0, description="Weight of the task loss.")

    def check(self) -> None:
        super().check()
        if not self.clean_weight and (not self.weight or isinstance(self.teacher, OwnAverage)):
            raise ValueError(
                "clean_weight=0 leaves only the distillation loss. It needs weight > 0 and "
                "teacher.kind='ensemble'"
            )

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders of the ensemble's models; empty for the teacher ``average``."""
        return self.teacher.folders if self.weight and isinstance(self.teacher, Ensemble) else ()

    def plan(self, now: Step) -> Plan:
        """Add the divergence, which needs no labels, to the clean pass's total."""
        if not self.weight:
            return plain(self.clean_weight)
        return Plan(clean=True, task_weight=self.clean_weight, needs_labels=False)

    def losses(self, step: StepContext) -> Iterator[Losses]:
        """Yield the clean loss and ``weight * T^2 KL(teacher_T || student_T)`` in one total."""
        logits, _stream = step.single_clean()  # [B, U, C]
        teacher = self._given(step, logits) if self.folders else self._averaged(step)
        head = step.head(logits)
        # T^2 KL(teacher_T || student_T), [B, U] summed to [B].
        units = head.distillation(logits, teacher, temperature=self.temperature)
        rows = step.per_row(units, logits)
        yield [step.clean.task, Term("distillation", rows, self.weight, logits=(logits,))]

    def _given(self, step: StepContext, logits: Tensor) -> Tensor:
        """Return the ensemble's logits [B, U, C], which the batch contains."""
        teacher = step.batch.teacher
        if teacher is None or teacher.shape not in (logits.shape, logits.squeeze(1).shape):
            got = "none" if teacher is None else f"shape {list(teacher.shape)}"
            shape = list(logits.squeeze(1).shape)
            raise DataError(
                f"The method learns from the predictions of {len(self.folders)} models, which a "
                f"batch must contain as 'teacher_logits' {shape}, got {got}. "
                "`temper train` adds them; in your own loop or Trainer use "
                "temper.training.distilling.teacher_logits."
            )
        return teacher.to(logits.dtype).reshape(logits.shape)

    def _averaged(self, step: StepContext) -> Tensor:
        """Return the logits [B, U, C] of the averaged network, without dropout."""
        # Before the first step there is no average yet, so the weights themselves are used.
        weights = step.average(TEACHER_RULE) or None
        network = step.network
        with torch.no_grad(), in_mode(network.model, training=False):
            return network.logits(step.batch, weights=weights, wrapped=False)

    def update(self) -> list[UpdateRule]:
        teacher = self.teacher
        if not self.weight or not isinstance(teacher, OwnAverage):
            return []
        average = FinalAverage if teacher.kept == "teacher" else RunningAverage
        return [average(teacher.decay, teacher.warm_up, name=TEACHER_RULE)]
