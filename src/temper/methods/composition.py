"""Composition: the objectives of several methods add, their update rules follow each other.

``r_drop + adv_weight`` minimises R-Drop's loss with SAM's step; ``uegr.objective +
child_tuning_d.rule`` takes one half of each. What two methods both claim is an error that names
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict

from temper.backward.rule import Chain, UpdateRule, chain
from temper.errors import CompositionError, SettingError, TemperError, unknown
from temper.forward.objective import Clean, add
from temper.methods.method import Method, MethodConfig
from temper.methods.registry import configure, name_of, names

Half = Literal["both", "objective", "rule"]
HALVES: tuple[Half, ...] = ("objective", "rule")


class Share(BaseModel):
    """What a method gives to a composition.

    Args:
        name: The method's name.
        config: Its settings.
        half: ``both`` halves of it, or only its ``objective`` or its ``rule``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    name: str
    config: MethodConfig
    half: Half = "both"

    @property
    def label(self) -> str:
        """The share as it is written in a method's name."""
        return self.name if self.half == "both" else f"{self.name}.{self.half}"


class Composed(MethodConfig):
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

    def build(self) -> Method:
        """Return the method.

        Raises:
            CompositionError: If two methods claim one slot, or one stands twice.
        """
        built = [(share, share.config.build()) for share in self.shares]
        objectives = [(share.name, m.objective) for share, m in built if share.half != "rule"]
        rules = [(share.name, m.rule) for share, m in built if share.half != "objective"]
        return Method(self.name, self, add(objectives) if objectives else Clean(), _joined(rules))


def compose(
    *methods: MethodConfig, objective: MethodConfig | None = None, rule: MethodConfig | None = None
) -> MethodConfig:
    """Compose methods: their objectives add, their update rules follow each other.

    Args:
        methods: Taken whole.
        objective: A method of which only the objective is taken.
        rule: A method of which only the update rule is taken.

    Returns:
        Settings like any method's.

    Raises:
        CompositionError: If two claim one slot, or one stands twice; it names both.

    Example:
        >>> from temper import RDrop, UEGR
        >>> compose(objective=UEGR(), rule=RDrop()).name
        'uegr.objective + r_drop.rule'
    """
    halves: list[tuple[MethodConfig, Half]] = [(method, "both") for method in methods]
    halves += [(objective, "objective")] if objective is not None else []
    halves += [(rule, "rule")] if rule is not None else []
    shares: list[Share] = []
    for config, half in halves:
        if isinstance(config, Composed):
            shares += (
                config.shares
                if half == "both"
                else [
                    Share(name=share.name, config=share.config, half=half)
                    for share in config.shares
                ]
            )
        else:
            shares.append(Share(name=name_of(config), config=config, half=half))
    return _checked(shares)


def is_composed(name: str) -> bool:
    """Tell whether a name stands for a composition.

    Example:
        >>> is_composed("r_drop + adv_weight"), is_composed("uegr.objective"), is_composed("uegr")
        (True, True, False)
    """
    return "+" in name or "." in name


def labels_of(name: str) -> list[tuple[str, str | None]]:
    """Split a composition's name into methods and the halves asked of them.

    Args:
        name: Methods with ``+`` between.

    Returns:
        (method, half), in order; the half is None for a whole method. Nothing is looked up.

    Example:
        >>> labels_of("uegr.objective + r_drop")
        [('uegr', 'objective'), ('r_drop', None)]
    """
    found: list[tuple[str, str | None]] = []
    for label in name.split("+"):
        method, dot, half = label.strip().partition(".")
        found.append((method.strip(), half.strip() if dot else None))
    return found


def name_faults(name: str) -> list[str]:
    """Say what is wrong with a method's name, whether composed or not; settings are not looked at.

    Args:
        name: A registered name, or a composition.

    Returns:
        One line per fault; none where every method and half is known.
    """
    found = []
    for method, half in labels_of(name):
        if method not in names():
            found.append(unknown("method", method, names()))
        if half is not None and half not in HALVES:
            found.append(unknown(f"half of {method}", half, HALVES))
    return list(dict.fromkeys(found))


def configure_composed(name: str, settings: Mapping[str, Any]) -> MethodConfig:
    """Make the settings of a composition from plain values; see `configure`.

    Args:
        name: Methods with ``+`` between.
        settings: Tables of values, by method.

    Raises:
        SettingError: For an unknown name, field or value, all faults at once.
        CompositionError: If the methods do not compose.
    """
    labels = labels_of(name)
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
            config = configure(method, table if isinstance(table, Mapping) else {})
            taken = next((each for each in HALVES if each == half), "both")
            shares.append(Share(name=method, config=config, half=taken))
        except TemperError as error:
            found += str(error).splitlines()
    if found:
        raise SettingError("\n".join(dict.fromkeys(found)))
    return _checked(shares)


def _checked(shares: list[Share]) -> Composed:
    names = [share.name for share in shares]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise CompositionError(
            f"The method {twice!r} stands twice in {' + '.join(s.label for s in shares)!r}. Name "
            "each once."
        )
    composed = Composed(shares=tuple(shares))
    # Faults of the composition show where it is made, before any work.
    composed.build()
    return composed


def _joined(named: list[tuple[str, UpdateRule]]) -> Chain:
    for place, (later, rule) in enumerate(named):
        for earlier, other in named[:place]:
            shared = sorted(rule.slots & other.slots)
            if shared:
                raise CompositionError(
                    f"{earlier!r} and {later!r} both claim the {shared[0]} of the update rule. "
                    f"Leave one of them out, or take one's objective alone "
                    f"({earlier}.objective + {later}.rule)."
                )
    return chain(*(rule for _, rule in named))
