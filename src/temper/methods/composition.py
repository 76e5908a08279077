"""Composition: the losses of several methods add, their update rules follow each other.

``r_drop + adv_weight`` minimises R-Drop's loss with SAM's step; ``uegr.objective +
child_tuning_d.rule`` takes one half of each. What two methods both claim is an error that names
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict

from temper.backward.rule import UpdateRule
from temper.errors import CompositionError, FieldError, SettingError, TemperError, unknown
from temper.forward.plan import Plan, merge
from temper.heads import Head
from temper.methods.declared import HALVES, is_composed, labels_of, name_faults
from temper.methods.method import Method
from temper.methods.registry import entry, name_of
from temper.types import Step

Half = Literal["both", "objective", "rule"]


class Share(BaseModel):
    """What a method gives to a composition.

    Args:
        name: The method's name.
        config: Its settings.
        half: ``both`` halves of it, or only its ``objective`` or its ``rule``.
        preset: Settings that came with a preset, which sets both halves at once.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    name: str
    config: Method
    half: Half = "both"
    preset: frozenset[str] = frozenset()

    @property
    def label(self) -> str:
        """The share as it is written in a method's name."""
        return self.name if self.half == "both" else f"{self.name}.{self.half}"


class Composed(Method):
    """Several methods in one.

    Args:
        shares: The methods, or halves of them, each once.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    shares: tuple[Share, ...]

    @property
    def name(self) -> str:
        """The composition as it is written on the command line."""
        return " + ".join(share.label for share in self.shares)

    @property
    def moves_embeddings(self) -> Method | None:
        """The settings of the one method that moves embeddings; None where none does."""
        found = (each.config.moves_embeddings for each in self.shares if each.half != "rule")
        return next(filter(None, found), None)

    def settings(self) -> dict[str, Any]:
        """Return the settings of each method, by its name."""
        return {share.name: share.config.settings() for share in self.shares}

    def off(self) -> Self:
        """Switch every method off."""
        shares = [
            Share(name=share.name, config=share.config.off(), half=share.half)
            for share in self.shares
        ]
        return type(self)(shares=tuple(shares))

    def composed(self) -> Sequence[Method]:
        """Return the methods whose losses are composed."""
        return [share.config for share in self.shares if share.half != "rule"]

    def plan(self, now: Step) -> Plan:
        """Return the merged plan.

        Raises:
            CompositionError: If two methods conflict.
        """
        return merge([(method.name, method.plan(now)) for method in self.composed()])

    def update(self) -> Sequence[UpdateRule]:
        """Return the update rules of all methods."""
        owned = [share for share in self.shares if share.half != "objective"]
        return [rule for share in owned for rule in share.config.update()]

    def check_head(self, head: type[Head]) -> None:
        """Refuse labels that one of the methods refuses."""
        for method in self.composed():
            method.check_head(head)

    def check_composition(self) -> None:
        """Refuse methods that do not compose.

        Raises:
            CompositionError: If two methods conflict, or losses read the state of an update rule
                that is not there.
        """
        rules = [
            (share.name, share.config.rule) for share in self.shares if share.half != "objective"
        ]
        for place, (later, rule) in enumerate(rules):
            for earlier, other in rules[:place]:
                if shared := sorted(rule.conflicts & other.conflicts):
                    raise CompositionError(
                        f"{earlier!r} and {later!r} both claim the {shared[0]} of the update rule. "
                        f"Leave one of them out, or take one's objective alone "
                        f"({earlier}.objective + {later}.rule)."
                    )
        if missing := sorted(self.plan(Step()).reads - {rule.name for rule in self.rule.rules}):
            raise CompositionError(
                f"The objective of {self.name!r} reads what the update rule {missing[0]!r} keeps, "
                "and that rule is not there. Take the method whole, not its objective alone, or "
                "set the weight of the term that reads it to 0."
            )


def compose(
    *methods: Method | str,
    objective: Method | str | None = None,
    rule: Method | str | None = None,
) -> Method:
    """Compose methods: their losses add, their update rules follow each other.

    Args:
        methods: Taken whole; a name takes the default settings.
        objective: A method of which only the objective is taken.
        rule: A method of which only the update rule is taken.

    Returns:
        Settings like any method's.

    Raises:
        CompositionError: If two claim one slot, or one stands twice; it names both. If a half is
            asked of a method that has none, or nothing is given.
        SettingError: If a setting belongs to the half that is left out.

    Example:
        >>> compose(objective="uegr", rule="child_tuning_d").name
        'uegr.objective + child_tuning_d.rule'
    """
    halves: list[tuple[Method | str, Half]] = [(method, "both") for method in methods]
    halves += [(objective, "objective")] if objective is not None else []
    halves += [(rule, "rule")] if rule is not None else []
    shares: list[Share] = []
    for given, half in halves:
        config = configure(given) if isinstance(given, str) else given
        if not isinstance(config, Composed):
            shares.append(Share(name=name_of(config), config=config, half=half))
        elif half == "both":
            shares += config.shares
        else:
            shares += [share.model_copy(update={"half": half}) for share in config.shares]
    return _checked(shares)


def configure(
    name: str, settings: Mapping[str, Any] | None = None, *, prefix: str | None = None
) -> Method:
    """Make a method's settings from plain values.

    Args:
        name: A registered name, or several with ``+`` between. ``NAME.objective`` and
            ``NAME.rule`` take one half of a method.
        settings: Values by field; ``preset`` picks published settings that the others override. Of
            several methods, a table of such values by method.
        prefix: What stands before a setting's name in errors, ``"method."`` where it was written
            so; None for the name of the settings class.

    Raises:
        SettingError: For an unknown name, field or value, all faults at once.
        CompositionError: If the methods do not compose.

    Example:
        >>> configure("r_drop", {"weight": 2.0}).weight
        2.0
    """
    if is_composed(name):
        return _configure_composed(name, settings or {}, prefix)
    config, values = entry(name).config, dict(settings or {})
    preset = values.pop("preset", None)
    try:
        return config(**values) if preset is None else config.preset(preset, **values)
    except FieldError as error:
        raise (error if prefix is None else error.under(prefix)) from None


def build(method: Method | str) -> Method:
    """Return a method from a method or its name.

    Args:
        method: A method; or a name, with the default settings, which may be several with ``+``
            between.

    Raises:
        SettingError: If no method has that name.
        CompositionError: If the methods do not compose.

    Example:
        >>> build("vanilla").name
        'vanilla'
    """
    if isinstance(method, type):
        raise SettingError(
            f"Expected a method or its name, got the class {method.__name__}. Give an instance: "
            f"{method.__name__}()."
        )
    return method if isinstance(method, Method) else configure(method)


def smoothed(method: Method, smoothing: float) -> Method:
    """Return a method with the labels smoothed in every task loss, clean and attacked.

    Args:
        method: Any registered method.
        smoothing: Fraction of each label that is spread over all classes, in [0, 1); 0 for none.

    Raises:
        CompositionError: If the method smooths labels itself.
        SettingError: If the fraction is out of bounds.
    """
    if not smoothing:
        return method
    return compose(method, configure("label_smoothing", {"smoothing": smoothing}))


def _configure_composed(name: str, settings: Mapping[str, Any], prefix: str | None) -> Composed:
    """Make the settings of a composition from tables of values by method; see `configure`."""
    labels = labels_of(name)
    if missing := [fault for fault in name_faults(name) if "is missing" in fault]:
        raise SettingError("\n".join(missing))
    asked = [method for method, _ in labels]
    found: list[str] = []
    for key, table in settings.items():
        if key not in asked:
            found.append(
                f"`method.{key}` cannot be set for the composition {name!r}: its settings are "
                f"written method.NAME.KEY, with NAME one of {', '.join(asked)}."
            )
        elif not isinstance(table, Mapping):
            found.append(f"`method.{key}` must be a table of settings, got {table!r}.")
    shares: list[Share] = []
    for method, half in labels:
        if half is not None and half not in HALVES:
            found.append(unknown(f"half of {method}", half, HALVES))
            continue
        table = settings.get(method, {})
        try:
            config = configure(
                method,
                table if isinstance(table, Mapping) else {},
                prefix=None if prefix is None else f"{prefix}{method}.",
            )
            taken = next((each for each in HALVES if each == half), "both")
            written = set(table) if isinstance(table, Mapping) else set()
            by_preset = config.model_fields_set - written if "preset" in written else set()
            shares.append(
                Share(name=method, config=config, half=taken, preset=frozenset(by_preset))
            )
        except TemperError as error:
            found += str(error).splitlines()
    if found:
        raise SettingError("\n".join(dict.fromkeys(found)))
    return _checked(shares)


def _checked(shares: list[Share]) -> Composed:
    if not shares:
        raise CompositionError("A composition needs at least one method, got none.")
    names = [share.name for share in shares]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise CompositionError(
            f"The method {twice!r} stands twice in {' + '.join(s.label for s in shares)!r}. Name "
            "each once."
        )
    composed = Composed(shares=tuple(_only_half(share) for share in shares))
    # Faults of the composition show where it is made, before any work.
    composed.check_composition()
    return composed


def _only_half(share: Share) -> Share:
    """Return a share with no settings but those that its half reads.

    Raises:
        CompositionError: If the method has no such half.
        SettingError: If a setting was given that only the other half reads.
    """
    if share.half == "both" or isinstance(share.config, Composed):
        return share
    config = share.config
    own: object = config.rule.rules
    if share.half == "objective":
        own = () if config.plan(Step()) == Plan() else config
    if own == () and share.name != "vanilla":
        what = "update rule" if share.half == "rule" else "objective"
        raise CompositionError(
            f"{share.name!r} has no {what} of its own with these settings, so that "
            f"{share.label!r} is plain fine-tuning's. Leave it out, or name another."
        )
    fields = type(config).model_fields
    unread = [name for name in config.model_fields_set if not config.reads(name, share.half)]
    changed = {name for name in unread if getattr(config, name) != fields[name].default}
    if ignored := sorted(changed - share.preset):
        raise SettingError(
            f"{share.label!r} would ignore {', '.join(ignored)}: only the other half of "
            f"{share.name!r} reads it. Leave it out, or take the method whole."
        )
    kept = config.model_copy(update={name: fields[name].default for name in changed})
    return Share(name=share.name, config=kept, half=share.half)
