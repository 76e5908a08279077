"""Hooks of update rules, one protocol each. A rule implements the hooks it needs.

Order of a run:

- before training: ``begin_run``, ``accumulate``, ``calibrate``; before each epoch ``begin_epoch``
- forward and backward passes: ``before_forward``, passes, ``gradient``, ``after_backward``
- gradients: ``regularize``, clipping, ``transform``
- optimizer step: ``learning_rate_scales``, the optimizer, ``after_step``
- after the last step: ``on_train_end``

Hooks read the rule's ``state`` and change it in place. Checkpoints store it.
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
    """Changes the weights before training, for example re-initializes layers."""

    def begin_run(self, params: Parameters, state: State, rng: Streams) -> None:
        """Change the weights before all other hooks; not called when a run resumes.

        ``rng`` has the random streams of the first step. ``params.start`` is updated afterwards.
        """


@runtime_checkable
class Accumulates(Protocol):
    """Reads the gradients of one epoch before training, for example to sum their squares."""

    def accumulate(self, grads: Gradients, params: Parameters, state: State) -> None:
        """Read the gradient of the clean loss on one batch."""


@runtime_checkable
class Calibrates(Protocol):
    """Measures the model on some rows before training."""

    @property
    def calibration_rows(self) -> int:
        """Number of rows to measure on; 0 skips the measurement."""

    def calibrate(
        self,
        network: Network,
        batches: Iterable[Batch],
        params: Parameters,
        state: State,
        step: Step,
        rng: Streams,
    ) -> None:
        """Measure the model on at least ``calibration_rows`` rows (or on all, if there are fewer).

        The network must be unchanged afterwards. ``step`` and ``rng`` are those of the first step.
        """


@runtime_checkable
class BeginsEpoch(Protocol):
    """Acts before the first step of each epoch, for example draws a mask."""

    def begin_epoch(self, params: Parameters, state: State, rng: Streams, *, epoch: int) -> None:
        """Prepare an epoch, counted from 0; called again when a run resumes within it."""


@runtime_checkable
class BeforeForward(Protocol):
    """Acts before the first pass of a step, for example moves the weights for all passes."""

    def before_forward(self, params: Parameters, state: State, step: Step, rng: Streams) -> None:
        """Act before the first pass, for example move the weights until ``after_backward``."""


@runtime_checkable
class RecomputesGradient(Protocol):
    """Computes the gradient of a step several times, for example at other weights.

    The micro-batches of the step stay in memory until it returns.
    """

    def gradient(
        self, params: Parameters, state: State, compute: Callable[[], Gradients]
    ) -> Gradients:
        """Return the gradient that the step uses.

        Each call of ``compute`` returns the gradient at the current weights, with the same dropout
        and noise. A rule that moves weights must restore them, also after an error (``finally``).
        """


@runtime_checkable
class AfterBackward(Protocol):
    """Acts after the last pass of a step."""

    def after_backward(self, params: Parameters, state: State) -> None:
        """Undo the changes of ``before_forward`` exactly; also called if a pass failed."""


@runtime_checkable
class Regularizes(Protocol):
    """Changes the gradients before clipping, for terms that belong to the loss (L2-SP)."""

    def regularize(
        self, grads: Gradients, params: Parameters, state: State, step: Step, rng: Streams
    ) -> Gradients:
        """Return the gradients of the regularized loss.

        ``grads`` are multiplied by ``step.loss_scale``, and may be changed in place.
        """


@runtime_checkable
class TransformsGradient(Protocol):
    """Changes the clipped gradients, for example masks them."""

    def transform(
        self, grads: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        """Return the gradients for the optimizer.

        ``grads`` may be changed in place. The optimizer skips parameters that are not returned.
        """


@runtime_checkable
class ScalesLearningRates(Protocol):
    """Multiplies the learning rates of parameters by factors."""

    def learning_rate_scales(
        self, params: Parameters, state: State, step: Step
    ) -> Mapping[str, float]:
        """Return name -> factor; the factor of other parameters is 1."""


@runtime_checkable
class AfterStep(Protocol):
    """Changes or reads the weights after the optimizer's step."""

    def after_step(self, params: Parameters, state: State, step: Step) -> None:
        """Change or read the new weights.

        ``step.rates`` has the learning rate and the weight decay.
        """


@runtime_checkable
class OnTrainEnd(Protocol):
    """Changes the weights after the last step."""

    def on_train_end(self, params: Parameters, state: State) -> None:
        """Set the final weights."""
