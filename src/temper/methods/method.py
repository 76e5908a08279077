"""A method: an objective joined to an update rule, and the settings it was built from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from temper.backward.rule import UpdateRule, chain
from temper.errors import CompositionError, FieldError, SettingError, unknown
from temper.forward import Clean, Objective, add
from temper.methods.variants import completed, merged


@dataclass(frozen=True)
class Published:
    """A published value of a setting.

    Args:
        value: It as a reader writes it; several where the paper tries or gives several.
        where: Equation, section or table of the paper, or file of the released code; empty where
            it is known to be the paper's and the place is not.
    """

    value: str
    where: str = ""

    def __str__(self) -> str:
        """Return the value with its source."""
        return f"{self.value} ({self.where})" if self.where else self.value


class MethodConfig(BaseModel, ABC):
    """Settings of a method: frozen, every field with bounds and its source.

    Raises:
        SettingError: With every fault at once, when a setting is unknown or out of bounds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    PUBLISHED: ClassVar[dict[str, Published]] = {}
    """What the method's source gives its settings, and those of training as ``train.NAME``."""
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}
    """Settings that go together, most of them published, by the name of their preset."""
    PRETRAINED: ClassVar[str] = ""
    """What it does with pre-trained weights, without which it has no meaning; empty for most."""

    def __init__(self, /, **settings: object) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise FieldError(error, type(self), f"{type(self).__name__}.") from None

    SIZE: ClassVar[str] = ""
    """Its setting that says how far embeddings are moved; empty where they are not."""
    HALVES: ClassVar[dict[str, str]] = {}
    """Of a method with both halves: the settings that its update rule reads alone, and those that
    both read; all others are the objective's."""

    @property
    def moves_embeddings(self) -> MethodConfig | None:
        """The settings that say how far embeddings are moved; None where they are not."""
        return self if self.SIZE else None

    def check(self) -> None:
        """Refuse settings that contradict each other, and warn of those that do next to nothing.

        Raises:
            ValueError: What is wrong, as the end of a sentence about the settings.
        """

    @field_validator("*", mode="before")
    @classmethod
    def _choose_variant(cls, given: Any, info: ValidationInfo) -> Any:
        return completed(given, cls.model_fields[str(info.field_name)])

    @model_validator(mode="after")
    def _checked(self) -> Self:
        self.check()
        return self

    @classmethod
    def reads(cls, setting: str, half: Literal["objective", "rule"]) -> bool:
        """Whether one half of the method reads a setting.

        Args:
            setting: Name of a setting.
            half: The half.
        """
        return not cls.HALVES or cls.HALVES.get(setting, "objective") in (half, "both")

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
            >>> UEGR.preset("sentiment").mask.alpha
            0.9
        """
        if name not in cls.PRESETS:
            raise SettingError(unknown(f"preset of {cls.__name__}", str(name), cls.PRESETS))
        return cls(**merged(cls.PRESETS[name], settings, config=cls))

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
        # Through the package's door: composition stands on this file.
        from temper import methods

        return methods.compose(self, other)

    def _with(self, **changes: object) -> Self:
        return type(self)(**{**self.model_dump(), **changes})


@dataclass(frozen=True)
class Method:
    """What is minimised and how weights move.

    Args:
        name: Name in logs and tables.
        config: The settings it was built from.
        objective: The forward stage; plain fine-tuning's unless given.
        rule: The backward stage; none unless given.

    Raises:
        CompositionError: If the objective reads the state of a rule that is not there.
    """

    name: str
    config: MethodConfig
    objective: Objective = field(default_factory=Clean)
    rule: UpdateRule = field(default_factory=chain)

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


def smoothed(method: Method, smoothing: float) -> Method:
    """Return a method with the labels smoothed in every task loss, clean and attacked.

    Args:
        method: Any method whose objective can be added to another.
        smoothing: Share of each label that is spread over all classes, in [0, 1); 0 for none.

    Raises:
        CompositionError: If the method smooths labels by itself.
        SettingError: If the share is out of bounds.
    """
    if not smoothing:
        return method
    if not 0 < smoothing < 1:
        raise SettingError(f"`smoothing` must be < 1 and >= 0, got {smoothing}.")
    both = [
        (method.name, method.objective),
        ("label_smoothing_factor", Clean(smoothing=smoothing)),
    ]
    return replace(method, objective=add(both))


def size_warning(method: Method, *, moved: float, own: float) -> str:
    """Return the warning that a method's first perturbation exceeds the embeddings.

    Args:
        method: The method.
        moved: l2 norm of the perturbation of a row, the mean over a batch.
        own: The same of the row's embeddings, over its real tokens.

    Returns:
        The warning, with what to set instead; empty where the perturbation is the smaller one.
    """
    if not moved > own:
        return ""
    norms = f"{moved:.3g} against {own:.3g} a row, the mean over the first batch"
    text = f"The method {method.name!r} moves the embeddings by more than their own norm: {norms}."
    config = method.config.moves_embeddings
    if config is None:
        return f"{text} Texts are then lost in the perturbation. Make it smaller."
    value = float(getattr(config, config.SIZE))
    advice = f"Lower {config.SIZE}={value:g}: at {value * own / moved:.2g} the norms are equal"
    if getattr(config, "relative", None) is False:
        advice += ", or set relative=True and a share of the norm (0.025, say)"
    return f"{text} Texts are then lost in the perturbation. {advice}."
