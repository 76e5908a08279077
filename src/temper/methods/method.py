"""A method: settings, the losses of a step, and the update rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from temper.backward.rule import Chain, UpdateRule, chain
from temper.errors import FieldError, SettingError, unknown
from temper.forward import Losses, Plan, StepContext
from temper.heads import Head
from temper.methods.variants import completed, merged
from temper.types import Step


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


class Method(BaseModel, ABC):
    """A method: frozen settings, the losses of a step, and the update rule.

    A method that changes what is minimized overrides ``plan`` and ``losses``; one that changes how
    the weights move overrides ``update``. Without either it is plain fine-tuning.

    Raises:
        SettingError: With every fault at once, when a setting is unknown or out of bounds.
    """

    NAME: ClassVar[str] = ""
    """The name under which ``@register`` knows the class."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    PUBLISHED: ClassVar[dict[str, Published]] = {}
    """What the method's source gives its settings, and those of training as ``train.NAME``."""
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}
    """Settings that go together, most of them published, by the name of their preset."""
    NEEDS_UNLABELED: ClassVar[bool] = False
    """Whether training must bring rows without labels too."""
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
    def moves_embeddings(self) -> Method | None:
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

    def plan(self, now: Step) -> Plan:
        """Return what the losses ask of a step, before anything runs.

        Args:
            now: Where training stands.
        """
        return Plan()

    def losses(self, step: StepContext) -> Iterator[Losses]:
        """Yield the loss terms, one total after the other.

        The caller runs backward on each total before it asks for the next, so that one graph is
        alive at a time. With ``Plan(clean=True)`` the first terms belong to the clean pass's total,
        which always holds the task's loss; as many totals follow as ``Plan.totals`` says. A plan
        with neither leaves the losses out.

        Args:
            step: The micro-batch, the network and the clean pass.
        """
        yield from ()

    def update(self) -> Sequence[UpdateRule]:
        """Return the update rules, in order; none leaves the optimizer's step as it is."""
        return []

    @property
    def rule(self) -> Chain:
        """The update rules as one."""
        return chain(*self.update())

    @property
    def name(self) -> str:
        """Name in logs and errors."""
        return self.NAME or type(self).__name__

    def composed(self) -> Sequence[Method]:
        """Return the methods whose losses are composed; by default itself alone."""
        return [self]

    def check_head(self, head: type[Head]) -> None:
        """Refuse labels that the losses cannot train on.

        Args:
            head: The kind of labels.

        Raises:
            SettingError: Why, and what to do.
        """

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

    def __add__(self, other: Method | str) -> Method:
        """Compose two methods: their losses add, their update rules follow each other.

        Raises:
            CompositionError: If they do not compose; it names both.
        """
        # Through the package's door: composition stands on this file.
        from temper import methods

        return methods.compose(self, other)

    def _with(self, **changes: object) -> Self:
        return type(self)(**{**self.model_dump(), **changes})


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
    config = method.moves_embeddings
    if config is None:
        return f"{text} Texts are then lost in the perturbation. Make it smaller."
    value = float(getattr(config, config.SIZE))
    advice = f"Lower {config.SIZE}={value:g}: at {value * own / moved:.2g} the norms are equal"
    if getattr(config, "relative", None) is False:
        advice += ", or set relative=True and a share of the norm (0.025, say)"
    return f"{text} Texts are then lost in the perturbation. {advice}."
