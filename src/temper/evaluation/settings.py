"""What is measured, and how: common settings, and a section for each measured perspective."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticKnownError

from temper.errors import unknown
from temper.evaluation import perspectives
from temper.evaluation.measurement import CommonSettings


class _Section(NamedTuple):
    """What was given for a perspective."""

    name: str
    value: Any


def _checked(section: _Section) -> BaseModel:
    """Check the settings of one perspective."""
    kind = EvaluationSettings.sections().get(section.name)
    if kind is None:
        raise PydanticKnownError("extra_forbidden")
    return kind.model_validate(section.value)


class EvaluationSettings(CommonSettings):
    """Settings of an evaluation, checked all at once.

    Beside the common ones stands a section for each perspective that has settings of its own,
    under its name; a perspective that is not measured has none.

    Example:
        >>> settings = EvaluationSettings(embedding_attack={"radii": 0.1})
        >>> settings.embedding_attack.radii
        (0.1,)
    """

    model_config = ConfigDict(extra="allow")

    __pydantic_extra__: dict[str, Annotated[Any, BeforeValidator(_checked)]]

    perspectives: tuple[str, ...] = Field(
        default_factory=perspectives.defaults,
        description="Perspectives to measure (`temper list perspectives`); `default` for those "
        "that need few passes, `all` for every one.",
    )

    @classmethod
    def sections(cls) -> dict[str, type[BaseModel]]:
        """Return the settings' class of each perspective that has some."""
        known = perspectives.perspectives().items()
        return {name: entry.settings for name, entry in known if entry.settings is not None}

    @model_validator(mode="before")
    @classmethod
    def _named_sections(cls, values: Any) -> Any:
        """Tell sections which they are, and add those of measured perspectives that lack."""
        if not isinstance(values, dict):
            return values
        names = values.get("perspectives", perspectives.defaults())
        names = (names,) if isinstance(names, str) else names
        measured: tuple[str, ...] = ()
        if isinstance(names, tuple | list) and all(isinstance(name, str) for name in names):
            measured = _resolved(names)
        wanted: dict[str, Any] = {name: {} for name in cls.sections() if name in measured}
        given = {name: value for name, value in values.items() if name not in cls.model_fields}
        sections = {name: _Section(name, value) for name, value in {**wanted, **given}.items()}
        return {**values, **sections}

    @field_validator("perspectives")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        names = _resolved(names)
        for name in names:
            if name not in perspectives.names():
                raise ValueError(unknown("perspective", name, perspectives.names()))
        if len(set(names)) < len(names):
            raise ValueError(f"must not name one twice, got {list(names)}")
        return names

    @model_validator(mode="after")
    def _all_is_read(self) -> EvaluationSettings:
        """Refuse what would be ignored: who sets it believes that it is measured."""
        readers = {name: [name] for name in self.model_extra or ()}
        if self.attack_rows is not None:
            known = perspectives.perspectives().items()
            readers["attack_rows"] = [name for name, entry in known if entry.perturbs]
        unread = [
            f"`{setting}` (only {' or '.join(map(repr, names))} does)"
            for setting, names in readers.items()
            if not set(names) & set(self.perspectives)
        ]
        if unread:
            raise ValueError(
                f"sets what nothing measured reads: {', '.join(unread)}. Have it measured "
                f"(`perspectives` are {', '.join(self.perspectives)}), or leave the setting out"
            )
        return self


def _resolved(names: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """Put the names that words such as ``all`` stand for in their place."""
    groups = {"all": perspectives.names(), "default": perspectives.defaults()}
    return tuple(each for name in names for each in groups.get(name, (name,)))
