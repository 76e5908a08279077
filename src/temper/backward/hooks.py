"""Hooks of an update rule, one protocol each. A rule implements the hooks it needs.

Order of a run:

- before training: ``begin_run``, ``accumulate``, ``calibrate``; before each epoch ``begin_epoch``
- forward and backward passes: ``before_forward``, passes, ``gradient``, ``after_backward``
- gradients: ``regularize``, clipping, ``transform``
- optimizer step: ``learning_rate_scales``, the optimizer, ``after_step``
- after the last step: ``on_train_end``

Every hook reads and changes the rule's own ``state`` in place; checkpoints hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from temper.seeding import Streams
from temper.types import Batch, Gradients, State, Step

if TYPE_CHECKING:
    from temper.models.network import Network, Parameters


@runtime_checkable
class BeginsRun(Protocol):
    """Changes the weights before the first step, for example re-initializes layers."""

    def begin_run(self, params: Parameters, state: State, rng: Streams) -> None:
        """Run once, before everything else; not repeated when a run resumes.

        ``rng`` has the streams of the first step. ``params.start`` is updated afterwards.
        """


@runtime_checkable
class Accumulates(Protocol):
    """Reads the gradients of an epoch before training, for example squared gradients."""

    def accumulate(self, grads: Gradients, params: Parameters, state: State) -> None:
        """Add the gradient of the clean loss on one batch."""


@runtime_checkable
class Calibrates(Protocol):
    """Measures the model on some rows before training."""

    @property
    def calibration_rows(self) -> int:
        """Number of rows to measure on; 0 skips the calibration."""

    def calibrate(
        self,
        network: Network,
        batches: Iterable[Batch],
        params: Parameters,
        state: State,
        step: Step,
        rng: Streams,
    ) -> None:
        """Measure the model on at least ``calibration_rows`` rows, if the data has that many.

        The network must be unchanged afterwards. The step and the streams are those of the first
        step.
        """


@runtime_checkable
class BeginsEpoch(Protocol):
    """Acts before the first step of each epoch, for example draws a mask."""

    def begin_epoch(self, params: Parameters, state: State, rng: Streams, *, epoch: int) -> None:
        """Prepare an epoch, counted from 0; called again when a run resumes within it."""


@runtime_checkable
class BeforeForward(Protocol):
    """Acts before the first pass of a step; may move weights until ``after_backward``."""

    def before_forward(self, params: Parameters, state: State, step: Step, rng: Streams) -> None:
        """Run before the first forward pass of a step, for example move the weights."""


@runtime_checkable
class RecomputesGradient(Protocol):
    """Computes the gradient several times, for example at other weights.

    The micro-batches of a step are kept until the rule has its gradient.
    """

    def gradient(
        self, params: Parameters, state: State, compute: Callable[[], Gradients]
    ) -> Gradients:
        """Return the gradient to use.

        ``compute`` returns the gradient at the current weights and repeats the same random draws. A
        rule that moves weights restores them by copying, in a ``finally``.
        """


@runtime_checkable
class AfterBackward(Protocol):
    """Acts after the last pass of a step."""

    def after_backward(self, params: Parameters, state: State) -> None:
        """Undo the changes of ``before_forward``, bit for bit; also called if a pass failed."""


@runtime_checkable
class Regularizes(Protocol):
    """Changes the gradients before clipping: everything that belongs to the loss itself."""

    def regularize(
        self, grads: Gradients, params: Parameters, state: State, step: Step, rng: Streams
    ) -> Gradients:
        """Return the gradients of the regularized loss.

        ``grads`` are multiplied by ``step.loss_scale``; their storage may be reused.
        """


@runtime_checkable
class TransformsGradient(Protocol):
    """Changes the clipped gradients, for example masks them."""

    def transform(
        self, grads: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        """Return the gradients for the optimizer.

        The storage of ``grads`` may be reused. The optimizer skips parameters that are left out.
        """


@runtime_checkable
class ScalesLearningRates(Protocol):
    """Scales the learning rates of single parameters."""

    def learning_rate_scales(
        self, params: Parameters, state: State, step: Step
    ) -> Mapping[str, float]:
        """Return a factor for each parameter, 1 by default."""


@runtime_checkable
class AfterStep(Protocol):
    """Acts on the weights after the optimizer."""

    def after_step(self, params: Parameters, state: State, step: Step) -> None:
        """Change or read the new weights.

        ``step.rates`` has the learning rate and the weight decay.
        """


@runtime_checkable
class OnTrainEnd(Protocol):
    """Sets the final weights."""

    def on_train_end(self, params: Parameters, state: State) -> None:
        """Change the weights after the last step."""
