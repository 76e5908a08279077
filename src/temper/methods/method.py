"""The base class of methods: settings, losses and update rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

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


class Method(BaseModel):
    """Base class of methods: frozen settings, the losses of a step, and update rules.

    To change the losses, override ``plan`` and ``losses``. To change gradients, weights or learning
    rates, override ``update``. Without either it is plain fine-tuning.

    Raises:
        SettingError: If settings are unknown or invalid; it lists all errors.
    """

    NAME: ClassVar[str] = ""
    """Name under which the class is registered."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    OFF: ClassVar[Mapping[str, Any]] = {}
    """Settings under which the method is plain fine-tuning, bit for bit."""
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}
    """Name of a preset -> settings that belong together, mostly published ones."""
    NEEDS_UNLABELED: ClassVar[bool] = False
    """Whether training also needs unlabeled rows."""
    PRETRAINED: ClassVar[str] = ""
    """Verb phrase for errors: how the method uses pre-trained weights; empty if it needs none."""
    SIZE: ClassVar[str] = ""
    """Name of the setting that bounds the embedding perturbation; empty if there is none."""

    def __init__(self, /, **settings: object) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise FieldError(error, type(self), f"{type(self).__name__}.") from None

    def check(self) -> None:
        """Raise a `ValueError` if settings contradict; warn about settings without effect."""

    @field_validator("*", mode="before")
    @classmethod
    def _choose_variant(cls, given: Any, info: ValidationInfo) -> Any:
        return completed(given, cls.model_fields[str(info.field_name)])

    @model_validator(mode="after")
    def _checked(self) -> Self:
        self.check()
        return self

    def plan(self, now: Step) -> Plan:
        """Return what the losses need from a step, before anything runs."""
        return Plan()

    def losses(self, step: StepContext) -> Iterator[Losses]:
        """Yield lists of loss terms; each list is a total with its own backward.

        The caller runs backward on each total before asking for the next, so only one graph is in
        memory. With ``Plan(clean=True)`` the first list joins the clean pass's total, which
        includes the task loss, unless its weight is 0. ``Plan.totals`` lists follow. If a plan has
        neither, this function is not called.
        """
        yield from ()

    def update(self) -> Sequence[UpdateRule]:
        """Return the update rules in their order; an empty list is the optimizer's plain step."""
        return []

    @property
    def rule(self) -> Chain:
        return chain(*self.update())

    @property
    def name(self) -> str:
        """Name in logs and errors."""
        return self.NAME or type(self).__name__

    def composed(self) -> Sequence[Method]:
        """Return the methods of a composition; by default the method itself."""
        return [self]

    def check_head(self, head: type[Head]) -> None:
        """Raise a `SettingError` if the losses cannot train on this kind of labels."""

    @classmethod
    def preset(cls, name: str, **settings: Any) -> Self:
        """Create the method from one of its ``PRESETS``; ``settings`` override values.

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
        """Return settings to change for a network that is trained from scratch.

        ``given`` has the user's settings, which it must not change.
        """
        return {}

    def settings(self) -> dict[str, Any]:
        """Return the settings as plain values, in the form for `configure`."""
        return self.model_dump(mode="json")

    def __add__(self, other: Method | str) -> Method:
        """Compose two methods, see `compose`."""
        # Imported here, because composition imports this module.
        from temper import methods

        return methods.compose(self, other)


def check_whole_text(method: Method, head: type[Head]) -> None:
    """Raise a `SettingError` if labels do not belong to whole texts.

    Tags, spans, choices and target tokens do not.
    """
    if head.not_in_windows:
        raise SettingError(
            f"The method {method.name!r} needs one label per text, and the model has the head "
            f"{head.name!r}. Use another method, such as r_drop or uegr."
        )


def size_warning(method: Method, *, perturbation: float, embeddings: float) -> str:
    """Return a warning if a perturbation is larger than the embeddings, else an empty string.

    ``perturbation`` and ``embeddings`` are l2 norms of a row over its real tokens, averaged over
    the first batch.
    """
    if not perturbation > embeddings:
        return ""
    norms = f"{perturbation:.3g} vs. {embeddings:.3g} per row, the mean over the first batch"
    text = f"The method {method.name!r} moves the embeddings by more than their own norm: {norms}."
    config = next((member for member in method.composed() if member.SIZE), None)
    if config is None:
        return f"{text} Texts are then lost in the perturbation. Make it smaller."
    value = float(getattr(config, config.SIZE))
    equal = value * embeddings / perturbation
    advice = f"Lower {config.SIZE}={value:g}: at {equal:.2g} the norms are equal"
    if getattr(config, "relative", None) is False:
        advice += ", or set relative=True and a fraction of the norm (for example 0.025)"
    return f"{text} Texts are then lost in the perturbation. {advice}."
