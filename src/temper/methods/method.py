"""A method: settings, the losses of a step, and the update rule."""

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
    """A method: frozen settings, the losses of a step, and the update rule.

    A method that changes what is minimized overrides ``plan`` and ``losses``; one that changes how
    the weights move overrides ``update``. Without either it is plain fine-tuning.

    Raises:
        SettingError: With every fault at once, when a setting is unknown or out of bounds.
    """

    NAME: ClassVar[str] = ""
    """Name under which the class is registered."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    OFF: ClassVar[Mapping[str, Any]] = {}
    """Settings under which the method is plain fine-tuning, bit for bit."""
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}
    """Settings that belong together, most of them published, by name of the preset."""
    NEEDS_UNLABELED: ClassVar[bool] = False
    """Whether training needs rows without labels too."""
    PRETRAINED: ClassVar[str] = ""
    """How the method uses pre-trained weights, as the verb of an error; empty if it needs none."""
    SIZE: ClassVar[str] = ""
    """The setting that bounds the perturbation of the embeddings; empty if there is none."""

    def __init__(self, /, **settings: object) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise FieldError(error, type(self), f"{type(self).__name__}.") from None

    def check(self) -> None:
        """Raise a `ValueError` on contradicting settings; warn about settings without effect."""

    @field_validator("*", mode="before")
    @classmethod
    def _choose_variant(cls, given: Any, info: ValidationInfo) -> Any:
        return completed(given, cls.model_fields[str(info.field_name)])

    @model_validator(mode="after")
    def _checked(self) -> Self:
        self.check()
        return self

    def plan(self, now: Step) -> Plan:
        """Return the requirements of the losses for a step, before anything runs."""
        return Plan()

    def losses(self, step: StepContext) -> Iterator[Losses]:
        """Yield the loss terms, one total after the other.

        The caller runs backward on each total before it asks for the next, so that one graph is
        alive at a time. With ``Plan(clean=True)`` the first terms belong to the clean pass's total,
        which always includes the task loss. ``Plan.totals`` further totals follow. If a plan has
        neither, this function is not called.
        """
        yield from ()

    def update(self) -> Sequence[UpdateRule]:
        """Return the update rules, in order; none keeps the optimizer's step unchanged."""
        return []

    @property
    def rule(self) -> Chain:
        return chain(*self.update())

    @property
    def name(self) -> str:
        """Name in logs and errors."""
        return self.NAME or type(self).__name__

    def composed(self) -> Sequence[Method]:
        """Return the methods whose losses are composed; by default the method itself."""
        return [self]

    def check_head(self, head: type[Head]) -> None:
        """Raise a `SettingError` with a way out if the losses cannot train on these labels."""

    @classmethod
    def preset(cls, name: str, **settings: Any) -> Self:
        """Return one of the ``PRESETS``; ``settings`` override its values.

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
        """Return other defaults for a network that is trained from scratch.

        They must not replace the user's settings, which are ``given``.
        """
        return {}

    def settings(self) -> dict[str, Any]:
        """Return the settings as plain values, in the form that ``configure`` accepts."""
        return self.model_dump(mode="json")

    def __add__(self, other: Method | str) -> Method:
        """Compose two methods: their losses add, their update rules follow each other."""
        # Imported here, because composition imports this module.
        from temper import methods

        return methods.compose(self, other)


def check_whole_text(method: Method, head: type[Head]) -> None:
    """Raise a `SettingError` if labels of parts meet a method that works on whole texts.

    The parts are words, positions, choices or next tokens.
    """
    if head.not_in_windows:
        raise SettingError(
            f"The method {method.name!r} needs labels of whole texts, and the model has the head "
            f"{head.name!r}. Use another method, such as r_drop or uegr."
        )


def size_warning(method: Method, *, perturbation: float, embeddings: float) -> str:
    """Return a warning if a method's first perturbation exceeds the embeddings, else an empty text.

    Both sizes are l2 norms of a row, the mean over a batch; the embeddings are those of real
    tokens.
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
