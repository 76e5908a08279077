"""Update rules: changes of a training step other than the loss and the optimizer."""
# Chain passes protocols as types, which isinstance accepts.
# mypy: disable-error-code="type-abstract"

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from temper.backward.hooks import (
    Accumulates,
    AfterBackward,
    AfterStep,
    BeforeForward,
    BeginsEpoch,
    BeginsRun,
    Calibrates,
    OnTrainEnd,
    RecomputesGradient,
    Regularizes,
    ScalesLearningRates,
    TransformsGradient,
)
from temper.errors import CompositionError, SettingError
from temper.lazy import Tensor
from temper.seeding import Streams
from temper.types import Batch, Gradients, State, Step

if TYPE_CHECKING:
    from temper.models.network import Network as Network
    from temper.models.network import Parameters as Parameters
else:
    # For annotations only, which are not evaluated: the module imports torch.
    Network = Parameters = Any

Hook = TypeVar("Hook")


class UpdateRule:
    """Base class of update rules. A rule implements the hooks it needs (`temper.backward.hooks`).

    Attributes:
        name: Key of the rule's state.
        conflicts: Resources that only one rule of a method may use: ``gradient`` (the weights at
            which it is computed), ``mask``, ``weights`` (those of the forward passes),
            ``after_step``, ``phases``, ``on_train_end``.
        supports_fsdp: Whether the rule supports weights sharded by FSDP2. It must sum through
            `Parameters` and key its random draws by position.
        logged: Name in logs -> key of the state to log.
    """

    name: str = "rule"
    conflicts: frozenset[str] = frozenset()
    supports_fsdp: bool = False
    logged: Mapping[str, str] = MappingProxyType({})

    def init(self, params: Parameters) -> State:
        """Return the rule's state before the first step.

        It consists of nested dicts of tensors and plain values. A tensor of a parameter's shape
        must be stored under the parameter's name, and is sharded like it.
        """
        return {}

    def regularization_losses(self, state: State) -> Mapping[str, Tensor]:
        """Return name -> weighted loss whose gradient ``regularize`` added.

        The logged loss of the step includes them.
        """
        return {}

    def diagnostics(self, state: State) -> Mapping[str, Tensor | float]:
        """Return name in logs -> measurement of the last step."""
        return {name: state[key] for name, key in self.logged.items() if key in state}


class InitialWeightsRule(UpdateRule):
    """Base class of rules that read ``params.start``, the weights before the first step.

    All such rules share one copy.
    """

    def init(self, params: Parameters) -> State:
        """Store the initial weights; a subclass that overrides this must call it."""
        params.keep_initial_weights()
        return {}


class WeightAverageRule(UpdateRule):
    """Base class of weight averages, which a chain runs last to see the other rules' results."""


class Chain(UpdateRule):
    """Several rules as one, applied in order.

    ``gradient`` nests with the first rule outermost; ``after_backward`` runs in reverse order. Each
    rule's state is stored under its name.
    """

    name = "chain"

    def __init__(self, rules: tuple[UpdateRule, ...]) -> None:
        self.rules = rules
        self._implementing: dict[type, list[Any]] = {}
        for index, later in enumerate(rules):
            for earlier in rules[:index]:
                shared = sorted(earlier.conflicts & later.conflicts)
                if shared or earlier.name == later.name:
                    fault = f"both use the {shared[0]}" if shared else "have the same name"
                    raise CompositionError(
                        f"The update rules {earlier.name!r} and {later.name!r} {fault}. Leave one "
                        "of them out."
                    )
        self.conflicts = frozenset[str]().union(*(rule.conflicts for rule in rules))
        self.supports_fsdp = all(rule.supports_fsdp for rule in rules)

    def implementing(self, state: State, hook: type[Hook]) -> Iterator[tuple[Hook, State]]:
        """Yield each rule that implements a hook, and its state."""
        # isinstance is slow for a protocol, and a step runs every hook.
        if hook not in self._implementing:
            self._implementing[hook] = [rule for rule in self.rules if isinstance(rule, hook)]
        for rule in self._implementing[hook]:
            yield rule, state[rule.name]

    def init(self, params: Parameters) -> State:
        return {rule.name: rule.init(params) for rule in self.rules}

    def begin_run(self, params: Parameters, state: State, rng: Streams) -> None:
        for rule, rule_state in self.implementing(state, BeginsRun):
            rule.begin_run(params, rule_state, rng)

    def accumulate(self, grads: Gradients, params: Parameters, state: State) -> None:
        for rule, rule_state in self.implementing(state, Accumulates):
            rule.accumulate(grads, params, rule_state)

    @property
    def calibration_rows(self) -> int:
        wanted = [rule.calibration_rows for rule in self.rules if isinstance(rule, Calibrates)]
        return max(wanted, default=0)

    def calibrate(
        self,
        network: Network,
        batches: Iterable[Batch],
        params: Parameters,
        state: State,
        step: Step,
        rng: Streams,
    ) -> None:
        rows = list(batches)
        for rule, rule_state in self.implementing(state, Calibrates):
            if rule.calibration_rows:
                rule.calibrate(network, rows, params, rule_state, step, rng)

    def begin_epoch(self, params: Parameters, state: State, rng: Streams, *, epoch: int) -> None:
        for rule, rule_state in self.implementing(state, BeginsEpoch):
            rule.begin_epoch(params, rule_state, rng, epoch=epoch)

    def before_forward(self, params: Parameters, state: State, step: Step, rng: Streams) -> None:
        for rule, rule_state in self.implementing(state, BeforeForward):
            rule.before_forward(params, rule_state, step, rng)

    def gradient(
        self, params: Parameters, state: State, compute: Callable[[], Gradients]
    ) -> Gradients:
        for rule, rule_state in reversed(list(self.implementing(state, RecomputesGradient))):
            compute = partial(rule.gradient, params, rule_state, compute)
        return compute()

    def after_backward(self, params: Parameters, state: State) -> None:
        for rule, rule_state in reversed(list(self.implementing(state, AfterBackward))):
            rule.after_backward(params, rule_state)

    def regularize(
        self, grads: Gradients, params: Parameters, state: State, step: Step, rng: Streams
    ) -> Gradients:
        for rule, rule_state in self.implementing(state, Regularizes):
            grads = rule.regularize(grads, params, rule_state, step, rng)
        return grads

    def regularization_losses(self, state: State) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = {}
        for rule in self.rules:
            losses |= rule.regularization_losses(state[rule.name])
        return losses

    def transform(
        self, grads: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        for rule, rule_state in self.implementing(state, TransformsGradient):
            grads = rule.transform(grads, params, rule_state, rng)
        return grads

    def learning_rate_scales(
        self, params: Parameters, state: State, step: Step
    ) -> dict[str, float]:
        scales: dict[str, float] = {}
        for rule, rule_state in self.implementing(state, ScalesLearningRates):
            for name, scale in rule.learning_rate_scales(params, rule_state, step).items():
                scales[name] = scales.get(name, 1.0) * scale
        return scales

    def after_step(self, params: Parameters, state: State, step: Step) -> None:
        for rule, rule_state in self.implementing(state, AfterStep):
            rule.after_step(params, rule_state, step)

    def on_train_end(self, params: Parameters, state: State) -> None:
        for rule, rule_state in self.implementing(state, OnTrainEnd):
            rule.on_train_end(params, rule_state)

    def diagnostics(self, state: State) -> dict[str, Tensor | float]:
        measured: dict[str, Tensor | float] = {}
        for rule in self.rules:
            measured |= rule.diagnostics(state[rule.name])
        return measured


def chain(*rules: UpdateRule) -> Chain:
    """Combine rules into one; ``chain()`` without rules changes nothing, and chains are flattened.

    Rules keep their order, but weight averages move to the end.

    Raises:
        CompositionError: If two rules have the same name or conflict.
    """
    flat = [rule for given in rules for rule in rules_of(given)]
    return Chain(tuple(sorted(flat, key=lambda rule: isinstance(rule, WeightAverageRule))))


def rules_of(rule: UpdateRule) -> tuple[UpdateRule, ...]:
    """Return the rules of a `Chain`, or a single rule as a tuple."""
    return rule.rules if isinstance(rule, Chain) else (rule,)


def implements(rule: UpdateRule, kind: type) -> bool:
    """Return whether a rule, or a rule of a chain, implements a hook or is of a class."""
    return any(isinstance(item, kind) for item in rules_of(rule))


def known_total(rule: UpdateRule, step: Step) -> int:
    """Return the run's number of optimizer steps; raise a `SettingError` if it is unknown."""
    if not step.total:
        raise SettingError(
            f"The update rule {rule.name!r} needs the number of optimizer steps. Pass "
            "Stepper(..., total=STEPS)."
        )
    return step.total
