"""Composition: the losses of several methods add, their update rules follow each other.

``r_drop + adv_weight`` minimizes R-Drop's loss with SAM's step; ``uegr.objective +
child_tuning_d.rule`` takes one half of each. Two methods that conflict raise an error that names
both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict

from temper.backward.rule import UpdateRule
from temper.errors import CompositionError, FieldError, SettingError, TemperError
from temper.forward.plan import Plan, merge
from temper.heads import Head
from temper.methods.method import Method
from temper.methods.registry import (
    HALVES,
    entry,
    is_composed,
    labels_of,
    name_faults,
    name_of,
    names,
)
from temper.types import Step

Half = Literal["both", "objective", "rule"]


class Part(BaseModel):
    """A method, or one half of it, in a composition.

    Args:
        half: ``both`` halves of it, or only its ``objective`` or its ``rule``.
        preset: Names of settings from a preset, which may belong to the other half.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    name: str
    config: Method
    half: Half = "both"
    preset: frozenset[str] = frozenset()

    @property
    def label(self) -> str:
        return self.name if self.half == "both" else f"{self.name}.{self.half}"


class Composed(Method):
    """Several methods in one.

    ``parts`` are the methods, or halves of them, each once.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    parts: tuple[Part, ...]

    @property
    def name(self) -> str:
        return " + ".join(part.label for part in self.parts)

    @property
    def moves_embeddings(self) -> Method | None:
        moving = (part.config.moves_embeddings for part in self.parts if part.half != "rule")
        return next(filter(None, moving), None)

    def settings(self) -> dict[str, Any]:
        return {part.name: part.config.settings() for part in self.parts}

    def off(self) -> Self:
        parts = [
            Part(name=part.name, config=part.config.off(), half=part.half) for part in self.parts
        ]
        return type(self)(parts=tuple(parts))

    def composed(self) -> Sequence[Method]:
        return [part.config for part in self.parts if part.half != "rule"]

    def plan(self, now: Step) -> Plan:
        return merge([(method.name, method.plan(now)) for method in self.composed()])

    def update(self) -> Sequence[UpdateRule]:
        owned = [part for part in self.parts if part.half != "objective"]
        return [rule for part in owned for rule in part.config.update()]

    def check_head(self, head: type[Head]) -> None:
        for method in self.composed():
            method.check_head(head)

    def check_composition(self) -> None:
        """Raise a `CompositionError` on conflicts, or if losses read a missing rule's state."""
        rules = [(part.name, part.config.rule) for part in self.parts if part.half != "objective"]
        for index, (later, rule) in enumerate(rules):
            for earlier, other in rules[:index]:
                if shared := sorted(rule.conflicts & other.conflicts):
                    raise CompositionError(
                        f"{earlier!r} and {later!r} both use the {shared[0]} of the update rule. "
                        f"Leave one of them out, or take one's objective alone "
                        f"({earlier}.objective + {later}.rule)."
                    )
        if missing := sorted(self.plan(Step()).reads - {rule.name for rule in self.rule.rules}):
            raise CompositionError(
                f"The objective of {self.name!r} reads the state of the update rule "
                f"{missing[0]!r}, which is missing. Take the whole method, not its objective "
                "alone, or set the weight of the term that reads it to 0."
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

    Raises:
        CompositionError: If two methods conflict or one is named twice; it names both. If a
            method has no such half, or no method is given.
        SettingError: If a setting belongs to the other half only.

    Example:
        >>> compose(objective="uegr", rule="child_tuning_d").name
        'uegr.objective + child_tuning_d.rule'
    """
    halves: list[tuple[Method | str, Half]] = [(method, "both") for method in methods]
    halves += [(objective, "objective")] if objective is not None else []
    halves += [(rule, "rule")] if rule is not None else []
    parts: list[Part] = []
    for given, half in halves:
        config = configure(given) if isinstance(given, str) else given
        if not isinstance(config, Composed):
            parts.append(Part(name=name_of(config), config=config, half=half))
        elif half == "both":
            parts += config.parts
        else:
            parts += [part.model_copy(update={"half": half}) for part in config.parts]
    return _checked(parts)


def configure(
    name: str, settings: Mapping[str, Any] | None = None, *, prefix: str | None = None
) -> Method:
    """Create a method from plain values.

    Args:
        name: A registered name, or several with ``+`` between. ``NAME.objective`` and
            ``NAME.rule`` take one half of a method.
        settings: Values by field; ``preset`` selects published settings, which the others override.
            For a composition, one table of values per method.
        prefix: Prefix of setting names in errors, for example ``"method."``; None for the name of
            the method's class.

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
    """Return a method from a method, its name, or several names with ``+`` between."""
    if isinstance(method, type):
        raise SettingError(
            f"Expected a method or its name, got the class {method.__name__}. Give an instance: "
            f"{method.__name__}()."
        )
    return method if isinstance(method, Method) else configure(method)


def smoothed(method: Method, smoothing: float) -> Method:
    """Return a method with the labels smoothed in every task loss, clean and attacked."""
    if not smoothing:
        return method
    if "label smoothing" in method.plan(Step()).conflicts:
        raise CompositionError(
            f"{method.name!r} and 'label_smoothing_factor' both smooth the labels. Leave one of "
            "them out."
        )
    return compose(method, configure("label_smoothing", {"smoothing": smoothing}))


def _configure_composed(name: str, settings: Mapping[str, Any], prefix: str | None) -> Composed:
    """Create a composition from one table of values per method; see `configure`."""
    labels = labels_of(name)
    named, faults = [method for method, _ in labels], name_faults(name)
    for key, table in settings.items():
        if key not in named:
            faults.append(
                f"`method.{key}` cannot be set for the composition {name!r}: its settings are "
                f"written method.NAME.KEY, with NAME one of {', '.join(named)}."
            )
        elif not isinstance(table, Mapping):
            faults.append(f"`method.{key}` must be a table of settings, got {table!r}.")
    parts: list[Part] = []
    for method, half in labels:
        # Other names are among the faults already.
        if method not in names():
            continue
        table = settings.get(method, {})
        written = table if isinstance(table, Mapping) else {}
        try:
            inner = None if prefix is None else f"{prefix}{method}."
            config = configure(method, written, prefix=inner)
            taken = next((known for known in HALVES if known == half), "both")
            by_preset = config.model_fields_set - set(written) if "preset" in written else set()
            parts.append(Part(name=method, config=config, half=taken, preset=frozenset(by_preset)))
        except TemperError as error:
            faults += str(error).splitlines()
    if faults:
        raise SettingError("\n".join(dict.fromkeys(faults)))
    return _checked(parts)


def _checked(parts: list[Part]) -> Composed:
    if not parts:
        raise CompositionError("A composition needs at least one method, got none.")
    named = [part.name for part in parts]
    twice = next((name for name in named if named.count(name) > 1), None)
    if twice is not None:
        raise CompositionError(
            f"The method {twice!r} is named twice in {' + '.join(part.label for part in parts)!r}. "
            "Name each method once."
        )
    composed = Composed(parts=tuple(_only_half(part) for part in parts))
    # Faults are raised when the composition is created, before any work.
    composed.check_composition()
    return composed


def _only_half(part: Part) -> Part:
    """Reset the settings that only the other half reads."""
    if part.half == "both" or isinstance(part.config, Composed):
        return part
    config = part.config
    has_rule, has_losses = bool(config.rule.rules), config.plan(Step()) != Plan()
    is_empty = not (has_rule if part.half == "rule" else has_losses)
    if is_empty and part.name != "plain":
        what = "update rule" if part.half == "rule" else "objective"
        raise CompositionError(
            f"{part.name!r} has no {what} with these settings, so that "
            f"{part.label!r} is plain fine-tuning. Leave it out, or name another."
        )
    fields = type(config).model_fields
    unread = [name for name in config.model_fields_set if not config.reads(name, part.half)]
    changed = {name for name in unread if getattr(config, name) != fields[name].default}
    if ignored := sorted(changed - part.preset):
        raise SettingError(
            f"{part.label!r} would ignore {', '.join(ignored)}: only the other half of "
            f"{part.name!r} reads it. Leave it out, or take the whole method."
        )
    kept = config.model_copy(update={name: fields[name].default for name in changed})
    return Part(name=part.name, config=kept, half=part.half)
