"""A method: an objective joined to an update rule, and the settings it was built from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from temper.backward.rule import UpdateRule, chain
from temper.errors import CompositionError, FieldError, SettingError, unknown
from temper.forward.objective import Objective
from temper.methods.published import Published


class MethodConfig(BaseModel, ABC):
    """Settings of a method: frozen, every field with bounds and its source.

    Raises:
        SettingError: With every fault at once, when a setting is unknown or out of bounds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    PUBLISHED: ClassVar[dict[str, Published]] = {}
    """What the method's source gives its settings, and those of training as ``train.NAME``."""
    PRETRAINED: ClassVar[str] = ""
    """What it does with pre-trained weights, without which it has no meaning; empty for most."""

    def __init__(self, /, **settings: object) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise FieldError(error, type(self), f"{type(self).__name__}.") from None

    SIZE: ClassVar[str] = ""
    """Its setting that says how far embeddings are moved; empty where they are not."""

    @property
    def moves_embeddings(self) -> MethodConfig | None:
        """The settings that say how far embeddings are moved; None where they are not."""
        return self if self.SIZE else None

    @abstractmethod
    def off(self) -> Self:
        """Return settings under which the method is plain fine-tuning, bit for bit."""

    @abstractmethod
    def build(self) -> Method:
        """Return the method with these settings."""

    @classmethod
    def preset(cls, name: str, **settings: Any) -> Self:
        """Return published settings.

        Args:
            name: One of ``PRESETS``.
            settings: What differs from them.

        Raises:
            SettingError: If there is no such preset, or a setting is wrong.

        Example:
            >>> from temper import UEGR
            >>> UEGR.preset("sentiment").alpha
            0.9
        """
        presets: Mapping[str, Mapping[str, Any]] = getattr(cls, "PRESETS", {})
        if name not in presets:
            raise SettingError(unknown(f"preset of {cls.__name__}", str(name), presets))
        return cls(**{**presets[name], **settings})

    @classmethod
    def from_scratch(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return what suits a network that is trained from scratch and nobody sets.

        Args:
            given: The settings that somebody does set.
        """
        return {}

    def settings(self) -> dict[str, Any]:
        """Return the settings as plain values: what ``configure`` takes with the method's name."""
        return self.model_dump(mode="json")

    def __add__(self, other: MethodConfig | str) -> MethodConfig:
        """Compose two methods: their objectives add, their update rules follow each other.

        Raises:
            CompositionError: If they do not compose; it names both.
        """
        from temper.methods.composition import compose

        return compose(self, other)

    def _with(self, **changes: object) -> Self:
        return type(self)(**{**self.model_dump(), **changes})


@dataclass(frozen=True)
class Method:
    """What is minimised and how weights move.

    Args:
        name: Name in logs and tables.
        config: The settings it was built from.
        objective: The forward stage.
        rule: The backward stage.

    Raises:
        CompositionError: If the objective reads the state of a rule that is not there.
    """

    name: str
    config: MethodConfig
    objective: Objective
    rule: UpdateRule

    def __post_init__(self) -> None:
        # Always a chain, so that a rule's state lies under its name whoever looks for it.
        rule = chain(self.rule)
        object.__setattr__(self, "rule", rule)
        missing: frozenset[str] = getattr(self.objective, "needs", frozenset()) - {
            each.name for each in rule.rules
        }
        if missing:
            raise CompositionError(
                f"The objective of {self.name!r} reads what the update rule "
                f"{sorted(missing)[0]!r} keeps, and that rule is not there. Take the method whole, "
                "not its objective alone, or set the weight of the term that reads it to 0."
            )

    def off(self) -> Method:
        """Return the method with its weights 0 and masks off: plain fine-tuning, bit for bit."""
        return self.config.off().build()
