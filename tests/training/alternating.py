"""A minimal method that needs unlabeled rows, whose loss can be worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from temper.backward.rule import UpdateRule
from temper.forward import Losses, Plan, StepContext
from temper.methods import Method, registry
from temper.types import Step, Term

NAME = "alternating"


class Alternating(Method):
    """The plain loss on rows with labels; the size of the logits on rows without."""

    NEEDS_UNLABELED: ClassVar[bool] = True

    rules: ClassVar[list[UpdateRule]] = []

    def plan(self, now: Step) -> Plan:
        return Plan(clean=True, needs_labels=False)

    def losses(self, step: StepContext) -> Iterator[Losses]:
        if step.batch.labels is not None:
            yield [step.clean.task]
        else:
            yield [Term("size", step.clean.logits[0].square().sum((-2, -1)), 0.1)]

    def update(self) -> list[UpdateRule]:
        return self.rules


@contextmanager
def alternating_registered() -> Iterator[str]:
    """Let the method be found by its name inside this context."""
    registry.names()
    before = registry.registered()
    registry.register(
        NAME, summary="Two phases", cost="3F", memory="none", paper="made for these tests"
    )(Alternating)
    try:
        yield NAME
    finally:
        registry.forget_since(before)
