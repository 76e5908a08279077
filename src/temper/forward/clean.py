"""The clean pass, which can be run once more: with its hidden states traced, at words nearby."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from temper.forward.stage import Stage, Tracing
from temper.forward.submodels import SubModels
from temper.functional.precision import in_half_precision
from temper.models.network import Recording, Site
from temper.models.states import Trace


@dataclass(frozen=True)
class CleanForward:
    """How one micro-batch passes through the network as it is.

    Args:
        stage: The micro-batch.
        submodels: Passes and dropout rates; None is one pass.
        start: Added to the embeddings [B, T, D], None for nothing.
        site: Where.
        recording: What is noted of the first run.
        tracing: How hidden states are traced, None for not.
    """

    stage: Stage
    submodels: SubModels | None
    start: Tensor | None
    site: Site
    recording: Recording
    tracing: Tracing | None

    def first(self) -> tuple[tuple[Tensor, ...], Trace | None]:
        """Run it.

        Returns:
            K tensors of logits [B, C], and the trace: None under an autocast to half precision,
            because smoothness is measured in single precision.
        """
        context: AbstractContextManager[Trace | None] = nullcontext()
        batch = self.stage.batch
        if self.tracing is not None and not in_half_precision(batch.device):
            context = self.stage.network.tracer(batch).tracing(**vars(self.tracing))
        with context as trace:
            noted = None if self.start is None else self.recording
            logits = self._run(noted, wrapped=True)
        if trace is not None:
            trace.logits = _joined(logits)
        return logits, trace

    def again(self, shift: Tensor | None) -> Trace:
        """Run it once more under the same dropout and trace it.

        Args:
            shift: Added to the word embeddings [K*B, T, E]; None leaves them.
        """
        assert self.tracing is not None
        tracer = self.stage.network.tracer(self.stage.batch)
        with tracer.tracing(shift=shift, **vars(self.tracing)) as trace:
            trace.logits = _joined(self._run(None, wrapped=False))
        return trace

    def _run(self, noted: Recording | None, *, wrapped: bool) -> tuple[Tensor, ...]:
        stage, submodels = self.stage, self.submodels
        if submodels is None or submodels.passes == 1:
            found = stage.logits(
                "clean", delta=self.start, site=self.site, recording=noted, wrapped=wrapped
            )
            return (found,)
        return submodels.logits(
            stage.network,
            stage.batch,
            rng=stage.rng,
            stream="clean",
            delta=self.start,
            site=self.site,
            noted=noted,
            wrapped=wrapped,
        )


def _joined(logits: tuple[Tensor, ...]) -> Tensor:
    return torch.cat(logits) if len(logits) > 1 else logits[0]
