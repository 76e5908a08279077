"""The check of a method lets sound ones pass (tests/contracts) and finds every planted fault."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from temper.backward.rule import UpdateRule, chain
from temper.errors import SettingError, TemperError
from temper.forward.objective import Clean, Joint
from temper.forward.stage import Part, Stage
from temper.methods import Method, MethodConfig, names, register
from temper.methods.registry import forget_since, registered
from temper.testing import LAWS, check_method
from temper.types import LossTerms, Term


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Take back what a test registered."""
    names()
    before = registered()
    yield
    forget_since(before)


class Scaled(Part):
    """The clean loss once more, times a factor."""

    terms = ("scaled",)
    joint = True

    def losses(self, stage: Stage) -> Iterator[LossTerms]:
        """Yield it."""
        task = stage.task_term(stage.clean.logits)
        yield LossTerms.of([Term("scaled", task.rows * self.factor(stage), 0.5)])

    def factor(self, stage: Stage) -> float:
        """Return the factor."""
        return 1.0


class Sound(MethodConfig):
    """Settings of a sound method.

    Args:
        weight: Whether it acts.
    """

    weight: float = 1.0

    def off(self) -> Any:
        return self._with(weight=0.0)

    def part(self) -> Part:
        return Scaled()

    def rule(self) -> UpdateRule:
        return chain()

    def build(self) -> Method:
        if not self.weight:
            return Method("planted", self, Clean(), chain())
        return Method("planted", self, Joint(Clean(weight=1.0), (self.part(),)), self.rule())


def planted(config: type[MethodConfig], **changes: str) -> str:
    said = {"summary": "s", "cost": "3F", "memory": "none", "paper": "p", **changes}
    register("planted", **said)(config)
    return "planted"


class KeepsActing(Sound):
    def off(self) -> Any:
        return self._with(weight=0.5)


class DrawsFromTheGlobalGenerator(Sound):
    def build(self) -> Method:
        torch.rand(1)
        return super().build()


class DoesNothing(Sound):
    def build(self) -> Method:
        return Method("planted", self, Clean(), chain())


class Undocumented(Sound):
    hidden: float = 0.0


class Forgetful(Sound):
    """Counts its steps where no checkpoint finds them."""

    def part(self) -> Part:
        class Counting(Scaled):
            count = 0.0

            def factor(self, stage: Stage) -> float:
                self.count += 1
                return self.count

        return Counting()


class DependsOnTheBatch(Sound):
    def part(self) -> Part:
        class OfSize(Scaled):
            def factor(self, stage: Stage) -> float:
                return float(stage.batch.size)

        return OfSize()


class Hoarding(Sound):
    def rule(self) -> UpdateRule:
        class Copies(UpdateRule):
            name = "copies"

            def init(self, params: Any) -> dict[str, Any]:
                return {name: tensor.detach().clone() for name, tensor in params.tensors.items()}

        return chain(Copies())


class Moving(Sound):
    """Moves the weights for the passes, and leaves them there."""

    def rule(self) -> UpdateRule:
        class Moves(UpdateRule):
            name = "moves"

            def before_forward(self, params: Any, state: Any, step: Any, rng: Any) -> None:
                with torch.no_grad():
                    for tensor in params.tensors.values():
                        tensor.add_(0.1)

        return chain(Moves())


def test_a_sound_method_keeps_all_laws() -> None:
    check_method(planted(Sound))


@pytest.mark.parametrize(
    ("config", "law", "message"),
    [
        (KeepsActing, "off", "off: off.. is not plain fine-tuning: "),
        (DrawsFromTheGlobalGenerator, "off", "draws from the global generator"),
        (DoesNothing, "on", "With these settings it is plain fine-tuning"),
        (Undocumented, "declaration", "says nothing of hidden under Args"),
        (Forgetful, "resumption", "A resumed run differs from a whole one"),
        (DependsOnTheBatch, "micro_batches", "have another gradient .* say draws_by_row=True"),
        (Hoarding, "memory", "must say whether it holds a copy"),
        (Moving, "failing_pass", "A failing pass leaves moved: "),
    ],
)
def test_a_planted_fault_is_found_by_its_law(
    config: type[MethodConfig], law: str, message: str
) -> None:
    with pytest.raises(TemperError, match=message):
        check_method(planted(config), laws=[law])


def test_all_faults_are_told_at_once_and_what_a_law_raises_is_one() -> None:
    class Failing(Undocumented):
        def part(self) -> Part:
            raise RuntimeError("no part today")

    with pytest.raises(TemperError, match=r"(?s)hidden under Args.*RuntimeError: no part today"):
        check_method(planted(Failing), laws=["declaration", "on"])


def test_what_cannot_be_checked_is_refused() -> None:
    with pytest.raises(SettingError, match="Unknown law 'of'. Did you mean 'off'"):
        check_method("r_drop", laws=["of"])
    with pytest.raises(SettingError, match="A composition is checked by its methods"):
        check_method("r_drop + at")
    assert {"off", "resumption", "micro_batches", "composition"} <= set(LAWS)
