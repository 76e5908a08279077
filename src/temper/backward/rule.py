"""Update rules: hooks between gradient and weights, each with a default that does nothing."""

from __future__ import annotations

from collections.abc import Callable

from temper.models.network import Parameters
from temper.seeding import Streams
from temper.types import Gradients, State, Step


class UpdateRule:
    """Move weights as the optimiser says: the identity, and the base of all rules.

    Attributes:
        replays: Whether ``gradient`` asks for the gradient more than once; micro-batches are then
            kept.
        before_clipping: Whether ``transform`` runs before the gradient's norm is clipped.
        pre_pass: Whether the rule wants squared gradients of the clean loss over one epoch before
            training.
    """

    replays: bool = False
    before_clipping: bool = False
    pre_pass: bool = False

    def init(self, params: Parameters) -> State:
        """Return the rule's state before the first step.

        Args:
            params: The trainable parameters.

        Returns:
            Nested dicts of tensors and plain values; checkpoints hold it.
        """
        return {}

    def observe(self, grads: Gradients, params: Parameters, state: State) -> None:
        """Take one batch's gradient of the pre-pass.

        Args:
            grads: Of the clean loss, by parameter.
            params: The trainable parameters.
            state: What ``init`` gave; changed in place, here and below.
        """

    def begin_epoch(self, params: Parameters, state: State, rng: Streams, *, epoch: int) -> None:
        """Do what comes before an epoch's first step; called again after a resume within it.

        Args:
            params: The trainable parameters.
            state: The rule's state.
            rng: Streams of the step.
            epoch: Number of the epoch, from 0.
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

    def transform(
        self, grads: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        """Turn gradients into those that the optimiser sees.

        Args:
            grads: By parameter; their storage may be reused.
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

    def settle(self, params: Parameters, state: State, step: Step) -> None:
        """Act on the weights after the optimiser's step.

        Args:
            params: The trainable parameters.
            state: The rule's state.
            step: Where training stands.
        """


class Chain(UpdateRule):
    """Apply rules one after the other.

    ``gradient`` nests (the first rule is outermost), ``transform`` pipes from left to right, the
    rest runs in order.

    Args:
        rules: The rules; none is the identity.
    """

    def __init__(self, rules: tuple[UpdateRule, ...]) -> None:
        self.rules = rules
        self.replays = any(rule.replays for rule in rules)
        self.before_clipping = any(rule.before_clipping for rule in rules)
        self.pre_pass = any(rule.pre_pass for rule in rules)

    def init(self, params: Parameters) -> State:
        """Return one state for each rule, by position."""
        return {str(place): rule.init(params) for place, rule in enumerate(self.rules)}

    def observe(self, grads: Gradients, params: Parameters, state: State) -> None:
        """Show the gradient to every rule that wants it."""
        for place, rule in enumerate(self.rules):
            if rule.pre_pass:
                rule.observe(grads, params, state[str(place)])

    def begin_epoch(self, params: Parameters, state: State, rng: Streams, *, epoch: int) -> None:
        """Begin the epoch in every rule."""
        for place, rule in enumerate(self.rules):
            rule.begin_epoch(params, state[str(place)], rng, epoch=epoch)

    def gradient(
        self, params: Parameters, state: State, compute: Callable[[], Gradients]
    ) -> Gradients:
        """Nest: each rule computes through the next."""

        def nested(place: int) -> Gradients:
            if place == len(self.rules):
                return compute()
            rule = self.rules[place]
            return rule.gradient(params, state[str(place)], lambda: nested(place + 1))

        return nested(0)

    def transform(
        self, grads: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        """Pipe the gradients through every rule."""
        for place, rule in enumerate(self.rules):
            grads = rule.transform(grads, params, state[str(place)], rng)
        return grads

    def learning_rate_scale(self, state: State, step: Step) -> float:
        """Multiply the rules' factors."""
        scale = 1.0
        for place, rule in enumerate(self.rules):
            scale *= rule.learning_rate_scale(state[str(place)], step)
        return scale

    def settle(self, params: Parameters, state: State, step: Step) -> None:
        """Settle every rule in order."""
        for place, rule in enumerate(self.rules):
            rule.settle(params, state[str(place)], step)


def chain(*rules: UpdateRule) -> UpdateRule:
    """Join rules; ``chain()`` is the identity and one rule is itself.

    Example:
        >>> chain().transform({}, None, {}, None)
        {}
    """
    return rules[0] if len(rules) == 1 else Chain(rules)
