"""`check_method` accepts correct methods (tests/contracts) and detects every planted fault."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
from pydantic import Field, PrivateAttr

from temper.backward.rule import UpdateRule
from temper.errors import SettingError, TemperError
from temper.forward import Losses, Plan, StepContext
from temper.methods import Method, names, register
from temper.methods.registry import forget_since, registered
from temper.testing import LAWS, check_method
from temper.types import Step, Term


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Take back what a test registered."""
    names()
    before = registered()
    yield
    forget_since(before)


class Sound(Method):
    """Settings of a sound method: the clean loss once more, times a factor."""

    OFF: ClassVar = {"weight": 0.0}

    weight: float = Field(default=1.0, description="Whether it acts.")

    def plan(self, now: Step) -> Plan:
        return Plan(clean=True, task_weight=1.0) if self.weight else Plan()

    def losses(self, step: StepContext) -> Iterator[Losses]:
        if self.weight:
            task = step.task(step.clean.logits)
            yield [step.clean.task, Term("scaled", task.rows * self.factor(step), 0.5)]

    def factor(self, step: StepContext) -> float:
        return 1.0


def planted(config: type[Method], **changes: str) -> str:
    message = {"summary": "s", "cost": "3F", "memory": "none", "paper": "p", **changes}
    register("planted", **message)(config)
    return "planted"


class KeepsActing(Sound):
    OFF: ClassVar = {"weight": 0.5}


class DrawsFromTheGlobalGenerator(Sound):
    def plan(self, now: Step) -> Plan:
        torch.rand(1)
        return super().plan(now)


class DoesNothing(Sound):
    def plan(self, now: Step) -> Plan:
        return Plan()

    def losses(self, step: StepContext) -> Iterator[Losses]:
        yield from ()


class Undocumented(Sound):
    hidden: float = 0.0


class Forgetful(Sound):
    """Counts its steps where no checkpoint stores them."""

    _count: float = PrivateAttr(0.0)

    def factor(self, step: StepContext) -> float:
        self._count += 1
        return self._count


class DependsOnTheBatch(Sound):
    def factor(self, step: StepContext) -> float:
        return float(step.batch.size)


class Hoarding(Sound):
    def update(self) -> list[UpdateRule]:
        class Copies(UpdateRule):
            name = "copies"

            def init(self, params: Any) -> dict[str, Any]:
                return {name: tensor.detach().clone() for name, tensor in params.tensors.items()}

        return [Copies()]


class Moving(Sound):
    """Moves the weights for the passes, and leaves them there."""

    def update(self) -> list[UpdateRule]:
        class Moves(UpdateRule):
            name = "moves"

            def before_forward(self, params: Any, state: Any, step: Any, rng: Any) -> None:
                with torch.no_grad():
                    for tensor in params.tensors.values():
                        tensor.add_(0.1)

        return [Moves()]


def test_a_correct_method_passes_all_laws() -> None:
    check_method(planted(Sound))


@pytest.mark.parametrize(
    ("config", "law", "message"),
    [
        (KeepsActing, "off", "off: .*not plain fine-tuning: "),
        (DrawsFromTheGlobalGenerator, "off", "draws from the global generator"),
        (DoesNothing, "on", "on: .* it is plain fine-tuning"),
        (Undocumented, "declaration", r"without Field\(description=...\): hidden"),
        (Forgetful, "resumption", "resumed run differs from"),
        (DependsOnTheBatch, "micro_batches", "have a different gradient .* say draws_by_row=True"),
        (Hoarding, "memory", "whether it keeps a copy"),
        (Moving, "failing_pass", "A failing pass leaves moved: "),
    ],
)
def test_a_planted_fault_is_found_by_its_law(config: type[Method], law: str, message: str) -> None:
    with pytest.raises(TemperError, match=message):
        check_method(planted(config), laws=[law])


def test_all_faults_are_reported_together_including_exceptions() -> None:
    class Failing(Undocumented):
        def losses(self, step: StepContext) -> Iterator[Losses]:
            raise RuntimeError("no losses today")

    with pytest.raises(TemperError, match=r"(?s): hidden.*RuntimeError: no losses today"):
        check_method(planted(Failing), laws=["declaration", "on"])


def test_an_uncheckable_method_raises_an_error() -> None:
    with pytest.raises(SettingError, match="Unknown law 'of'. Did you mean 'off'"):
        check_method("r_drop", laws=["of"])
    with pytest.raises(SettingError, match="A composition is not checked"):
        check_method("r_drop + at")
    assert {"off", "resumption", "micro_batches", "composition"} <= set(LAWS)
