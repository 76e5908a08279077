"""A method that wants rows without labels, so small that its loss can be worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from temper.backward.rule import UpdateRule, chain
from temper.forward.objective import Clean
from temper.methods import Method, MethodConfig, registry
from temper.models.network import Network
from temper.seeding import Streams
from temper.types import Batch, LossTerms, State, Step, Term

NAME = "alternating"


@dataclass(frozen=True)
class Either:
    """The plain loss on rows with labels; the size of the logits on rows without."""

    wants_unlabelled = True

    def passes(self, step: Step) -> int:
        return 1

    def losses(
        self, network: Network, batch: Batch, state: State, step: Step, rng: Streams
    ) -> Iterator[LossTerms]:
        if batch.labels is not None:
            yield from Clean().losses(network, batch, state, step, rng)
            return
        logits = network.logits(batch, seed=rng.local("dropout", "size"))
        yield LossTerms.of([Term("size", logits.square().sum(-1), 0.1)])


class Alternating(MethodConfig):
    """Settings: none."""

    def off(self) -> Self:
        return self

    def build(self) -> Method:
        return self.under(chain())

    def under(self, rule: UpdateRule) -> Method:
        """Return the method with an update rule."""
        return Method(NAME, self, Either(), rule)


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
