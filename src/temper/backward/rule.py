"""Update rules: hooks between gradient and weights, each with a default that does nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from torch import Tensor

from temper.errors import CompositionError
from temper.models.network import Network, Parameters
from temper.seeding import Streams
from temper.types import Batch, Gradients, State, Step


class UpdateRule:
    """Move weights as the optimiser says: the identity, and the base of all rules.

    A step calls the hooks in this order: ``enter``, the passes, ``gradient``, ``restore``,
    ``penalise``, clipping, ``transform``, the optimiser, ``settle``.

    Attributes:
        name: Where its state lies in the whole state.
        slots: What only one rule of a method may claim: ``gradient`` (the weights at which it is
            taken), ``mask``, ``weights`` (those that the passes see), ``settling``, ``phases``,
            ``finish``.
        replays: Whether ``gradient`` asks for the gradient more than once; micro-batches are then
            kept.
        pre_pass: Whether the rule wants gradients of the clean loss over one epoch before training.
        survey_rows: How many rows it wants to look at before training, 0 for none.
        wants_start: Whether it reads ``params.start``, the weights before the first step. One copy
            serves all rules.
        wants_rates: Whether ``settle`` reads learning rate and weight decay from its step.
        wants_total: Whether it must know how many steps there will be.
        trainings: How many trainings the run consists of. Each begins with the weights before the
            first step and a fresh optimiser, and has the whole course of the learning rate.
        last: Whether a chain puts it behind the others: it reads the weights that they leave.
        redraws: Whether ``begin_run`` draws weights anew.
        replaces_weights: Whether ``finish`` sets weights whatever those are that it finds.
        takes_rows: Whether it works where each process holds some rows of the weights (FSDP2): sums
            and norms go through `Parameters`, draws are keyed by the position in the whole.
        logged: Entries of the state that logs show, by their names there; absent ones are not.
        moved: Numbers of a weight's size that a step must read or write for each weight that the
            rule covers, beside backward, clipping and the optimiser: two for a gradient that is
            changed in place. It is the floor that benchmarks hold the rule's time against.
    """

    name: str = "rule"
    slots: frozenset[str] = frozenset()
    replays: bool = False
    pre_pass: bool = False
    survey_rows: int = 0
    wants_start: bool = False
    wants_rates: bool = False
    wants_total: bool = False
    trainings: int = 1
    last: bool = False
    redraws: bool = False
    replaces_weights: bool = False
    takes_rows: bool = False
    logged: Mapping[str, str] = MappingProxyType({})
    moved: float = 0.0

    def first_steps(self, total: int) -> list[int]:
        """Return the step with which each training after the first begins.

        Args:
            total: Steps of the run, over which the trainings are of equal length; with fewer steps
                than ``trainings`` each step is one.

        Example:
            >>> UpdateRule().first_steps(10)
            []
        """
        trainings = min(self.trainings, total)
        return [place * total // trainings for place in range(1, trainings)]

    def init(self, params: Parameters) -> State:
        """Return the rule's state before the first step.

        Args:
            params: The trainable parameters.

        Returns:
            Nested dicts of tensors and plain values; checkpoints hold it. What is kept for each
            entry of a parameter stands under the parameter's name, to be shared out with it.
        """
        return {}

    def begin_run(self, params: Parameters, state: State, rng: Streams) -> None:
        """Act on the weights before anything else of a run; not called again after a resume.

        Args:
            params: The trainable parameters; ``params.start`` follows a rule that ``redraws``.
            state: What ``init`` gave; changed in place, here and below.
            rng: Streams of the first step.
        """

    def observe(self, grads: Gradients, params: Parameters, state: State) -> None:
        """Take one batch's gradient of the pre-pass.

        Args:
            grads: Of the clean loss, by parameter.
            params: The trainable parameters.
            state: The rule's state.
        """

    def survey(
        self,
        network: Network,
        batches: Iterable[Batch],
        params: Parameters,
        state: State,
        step: Step,
        rng: Streams,
    ) -> None:
        """Look at some rows before training, in whatever way.

        Args:
            network: Leave it as it came.
            batches: At least ``survey_rows`` rows where there are so many.
            params: The trainable parameters.
            state: The rule's state.
            step: The first step.
            rng: Streams of the first step.
        """

    def begin_epoch(self, params: Parameters, state: State, rng: Streams, *, epoch: int) -> None:
        """Do what comes before an epoch's first step; called again after a resume within it.

        Args:
            params: The trainable parameters.
            state: The rule's state.
            rng: Streams of the step.
            epoch: Number of the epoch, from 0.
        """

    def enter(self, params: Parameters, state: State, step: Step, rng: Streams) -> None:
        """Do what comes before a step's first pass; weights may be moved until ``restore``.

        Args:
            params: The trainable parameters.
            state: The rule's state.
            step: Where training stands.
            rng: Streams of the step.
        """

    def gradient(
        self, params: Parameters, state: State, compute: Callable[[], Gradients]
    ) -> Gradients:
        """Return the gradient to use.

        Args:
            params: The trainable parameters; whoever moves them restores them by copying, in a
                ``finally``.
            state: The rule's state.
            compute: Gives the gradient at the weights as they stand; may be called several times
                by a rule that ``replays``.
        """
        return compute()

    def restore(self, params: Parameters, state: State) -> None:
        """Undo what ``enter`` did, bit for bit; called after the passes, failed ones too.

        Args:
            params: The trainable parameters.
            state: The rule's state.
        """

    def penalise(
        self, grads: Gradients, params: Parameters, state: State, step: Step, rng: Streams
    ) -> Gradients:
        """Change gradients before their norm is clipped: what belongs to the loss itself.

        Args:
            grads: By parameter, times the step's ``loss_scale``; their storage may be reused.
            params: The trainable parameters.
            state: The rule's state.
            step: Where training stands.
            rng: Streams of the step.
        """
        return grads

    def pulls(self, state: State) -> Mapping[str, Tensor]:
        """Return the values of the losses whose gradients ``penalise`` added in this step.

        Logs count them as parts of the step's loss.

        Args:
            state: The rule's state.

        Returns:
            Weighted scalars, by name.
        """
        return {}

    def transform(
        self, grads: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        """Turn clipped gradients into those that the optimiser sees.

        Args:
            grads: By parameter; their storage may be reused. What is left out is not moved.
            params: The trainable parameters.
            state: The rule's state.
            rng: Streams of the step.
        """
        return grads

    def learning_rate_scale(self, state: State, step: Step) -> float:
        """Return the factor on the learning rates of this step.

        Args:
            state: The rule's state.
            step: Where training stands.
        """
        return 1.0

    def learning_rate_scales(self, params: Parameters, state: State) -> dict[str, float]:
        """Return further factors on the learning rates of single parameters, 1 where not named.

        Args:
            params: The trainable parameters.
            state: The rule's state.
        """
        return {}

    def settle(self, params: Parameters, state: State, step: Step) -> None:
        """Act on the weights after the optimiser's step.

        Args:
            params: The trainable parameters.
            state: The rule's state.
            step: Where training stands.
        """

    def finish(self, params: Parameters, state: State) -> None:
        """Act on the weights once training is over.

        Args:
            params: The trainable parameters.
            state: The rule's state.
        """

    def diagnostics(self, state: State) -> Mapping[str, Tensor | float]:
        """Return what there is to say of the last step, by name in logs.

        Args:
            state: The rule's state.
        """
        return {name: state[key] for name, key in self.logged.items() if key in state}


class Chain(UpdateRule):
    """Apply rules one after the other; the state of each lies under its name.

    ``gradient`` nests (the first rule is outermost), ``restore`` runs from right to left, the rest
    pipes or runs from left to right.

    Args:
        rules: The rules; none is the identity.

    Raises:
        CompositionError: If two have one name or claim one slot.
    """

    name = "chain"

    def __init__(self, rules: tuple[UpdateRule, ...]) -> None:
        self.rules = rules
        for place, later in enumerate(rules):
            for earlier in rules[:place]:
                shared = sorted(earlier.slots & later.slots)
                if shared or earlier.name == later.name:
                    what = f"both claim the {shared[0]}" if shared else "are of one kind"
                    raise CompositionError(
                        f"The update rules {earlier.name!r} and {later.name!r} {what}. Leave one "
                        "of them out."
                    )
        self.slots = frozenset[str]().union(*(rule.slots for rule in rules))
        for wish in (
            "replays",
            "pre_pass",
            "wants_start",
            "wants_rates",
            "wants_total",
            "redraws",
            "replaces_weights",
        ):
            setattr(self, wish, any(getattr(rule, wish) for rule in rules))
        self.takes_rows = all(rule.takes_rows for rule in rules)
        self.trainings = max((rule.trainings for rule in rules), default=1)
        self.survey_rows = max((rule.survey_rows for rule in rules), default=0)

    def _each(self, state: State) -> Iterator[tuple[UpdateRule, State]]:
        for rule in self.rules:
            yield rule, state[rule.name]

    def init(self, params: Parameters) -> State:
        """Return the state of each rule, by its name."""
        return {rule.name: rule.init(params) for rule in self.rules}

    def begin_run(self, params: Parameters, state: State, rng: Streams) -> None:
        """Begin the run in every rule."""
        for rule, own in self._each(state):
            rule.begin_run(params, own, rng)

    def observe(self, grads: Gradients, params: Parameters, state: State) -> None:
        """Show the gradient to every rule that wants it."""
        for rule, own in self._each(state):
            if rule.pre_pass:
                rule.observe(grads, params, own)

    def survey(
        self,
        network: Network,
        batches: Iterable[Batch],
        params: Parameters,
        state: State,
        step: Step,
        rng: Streams,
    ) -> None:
        """Show the rows to every rule that wants them."""
        seen = list(batches)
        for rule, own in self._each(state):
            if rule.survey_rows:
                rule.survey(network, seen, params, own, step, rng)

    def begin_epoch(self, params: Parameters, state: State, rng: Streams, *, epoch: int) -> None:
        """Begin the epoch in every rule."""
        for rule, own in self._each(state):
            rule.begin_epoch(params, own, rng, epoch=epoch)

    def enter(self, params: Parameters, state: State, step: Step, rng: Streams) -> None:
        """Enter every rule."""
        for rule, own in self._each(state):
            rule.enter(params, own, step, rng)

    def gradient(
        self, params: Parameters, state: State, compute: Callable[[], Gradients]
    ) -> Gradients:
        """Nest: each rule computes through the next."""

        def nested(place: int) -> Gradients:
            if place == len(self.rules):
                return compute()
            rule = self.rules[place]
            return rule.gradient(params, state[rule.name], lambda: nested(place + 1))

        return nested(0)

    def restore(self, params: Parameters, state: State) -> None:
        """Restore in every rule, the last one first."""
        for rule, own in reversed(list(self._each(state))):
            rule.restore(params, own)

    def penalise(
        self, grads: Gradients, params: Parameters, state: State, step: Step, rng: Streams
    ) -> Gradients:
        """Pipe the gradients through every rule."""
        for rule, own in self._each(state):
            grads = rule.penalise(grads, params, own, step, rng)
        return grads

    def pulls(self, state: State) -> dict[str, Tensor]:
        """Join what every rule added to the loss."""
        return {
            name: value
            for rule, own in self._each(state)
            for name, value in rule.pulls(own).items()
        }

    def transform(
        self, grads: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        """Pipe the gradients through every rule."""
        for rule, own in self._each(state):
            grads = rule.transform(grads, params, own, rng)
        return grads

    def learning_rate_scale(self, state: State, step: Step) -> float:
        """Multiply the rules' factors."""
        scale = 1.0
        for rule, own in self._each(state):
            scale *= rule.learning_rate_scale(own, step)
        return scale

    def learning_rate_scales(self, params: Parameters, state: State) -> dict[str, float]:
        """Multiply the rules' factors."""
        scales: dict[str, float] = {}
        for rule, own in self._each(state):
            for name, scale in rule.learning_rate_scales(params, own).items():
                scales[name] = scales.get(name, 1.0) * scale
        return scales

    def settle(self, params: Parameters, state: State, step: Step) -> None:
        """Settle every rule in order."""
        for rule, own in self._each(state):
            rule.settle(params, own, step)

    def finish(self, params: Parameters, state: State) -> None:
        """Finish every rule in order."""
        for rule, own in self._each(state):
            rule.finish(params, own)

    def diagnostics(self, state: State) -> dict[str, Tensor | float]:
        """Join what every rule has to say."""
        return {
            key: value
            for rule, own in self._each(state)
            for key, value in rule.diagnostics(own).items()
        }


def chain(*rules: UpdateRule) -> Chain:
    """Join rules to one; ``chain()`` is the identity, and chains inside are opened.

    Rules stay in their order, but for those that come ``last``.

    Raises:
        CompositionError: If two have one name or claim one slot.

    Example:
        >>> chain().transform({}, None, {}, None)
        {}
    """
    opened: list[UpdateRule] = []
    for rule in rules:
        opened += rule.rules if isinstance(rule, Chain) else [rule]
    return Chain(tuple(sorted(opened, key=lambda rule: rule.last)))
