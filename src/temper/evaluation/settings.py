"""Settings of an evaluation: common ones, and a section for each perspective."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticKnownError

from temper.data.settings import source_name
from temper.errors import SettingError, unknown
from temper.evaluation import perspectives
from temper.evaluation.common_settings import CommonSettings
from temper.functional.label_names import GivenNames
from temper.settings import LabelMap, Tree, section
from temper.types import Pool

if TYPE_CHECKING:
    from temper.data.suites.suite import FoundSuite


class _Section(NamedTuple):
    name: str
    value: Any


def _checked(section: _Section) -> BaseModel:
    kind = EvaluationSettings.sections().get(section.name)
    if kind is None:
        raise PydanticKnownError("extra_forbidden")
    return kind.model_validate(section.value)


class EvaluationSettings(CommonSettings):
    """Settings of an evaluation: the common ones, and a section for each measured perspective.

    A section has the name of its perspective. All faults are reported at once.

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
        known = perspectives.perspectives().items()
        return {name: entry.settings for name, entry in known if entry.settings is not None}

    @model_validator(mode="before")
    @classmethod
    def _named_sections(cls, values: Any) -> Any:
        """Mark each section with the class that checks it, and add missing sections."""
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
            raise ValueError(f"must not repeat a value, got {list(names)}")
        return names

    @model_validator(mode="after")
    def _all_is_read(self) -> EvaluationSettings:
        """Raise if no measured perspective reads a setting, so that it would be ignored."""
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
                f"has settings that no measured perspective reads: {', '.join(unread)}. Add the "
                f"perspective (`perspectives` are {', '.join(self.perspectives)}), or leave the "
                "setting out"
            )
        return self


def _resolved(names: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    groups = {"all": perspectives.names(), "default": perspectives.defaults()}
    return tuple(item for name in names for item in groups.get(name, (name,)))


ROOT = "TEMPER_DATA"
"""Environment variable with the folder of the sets of suites."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class PredictorSettings(BaseModel):
    """Settings of how to load and run a model, as far as the model does not define them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: str | None = Field(
        default=None,
        description="Device of a checkpoint: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`. Default: a "
        "GPU if there is one.",
    )
    gives: str | None = Field(
        default=None,
        description="Output of a function: `probabilities`, `logits`, or `values` of a "
        "regression. Default: its attribute `gives`.",
    )
    label_names: tuple[str, ...] | None = Field(
        default=None,
        description="Class names in the order of the model's outputs; they replace the names in "
        "the model.",
    )
    label_map: LabelMap = Field(
        default_factory=dict,
        description="Maps the model's class names to the data's, for example "
        "`POSITIVE=pos,NEGATIVE=neg`.",
    )
    max_new_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Maximum number of tokens of a language model's completion. Default: 256.",
    )
    stride: int | None = Field(
        default=None,
        ge=0,
        description=(
            "Read texts longer than --max-length in windows that overlap by this many tokens. "
            "Default: as in training."
        ),
    )
    pool: Pool | None = Field(
        default=None,
        description="How the logits of a text's windows are pooled: `mean` or `max`. "
        "Default: as in training, else `mean`.",
    )
    max_windows: int | None = Field(
        default=None,
        ge=1,
        description="Maximum number of windows of a text; 1 truncates texts. Default: as in "
        "training, else 8.",
    )
    trust: tuple[str, ...] = Field(
        default=(),
        description="Types in a skops file to load although skops does not know them.",
    )

    @property
    def given_windows(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in ("stride", "pool", "max_windows")}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def given_names(self) -> GivenNames:
        return GivenNames(self.label_names, self.label_map)


def named_sources(given: Any, field: ValidationInfo) -> Any:
    """Parse sets written as ``NAME=PATH``; also accept a mapping of names to paths.

    Example:
        >>> SetSources(shift=["yelp=data/yelp.csv"]).shift
        {'yelp': 'data/yelp.csv'}
    """
    if isinstance(given, Mapping):
        pairs = [(str(name), source_name(source)) for name, source in given.items()]
    else:
        pairs = []
        for text in (given,) if isinstance(given, str) else given:
            name, _, source = str(text).partition("=")
            pairs.append((name.strip(), source.strip()))
    sources: dict[str, str] = {}
    for name, source in pairs:
        if not _NAME.fullmatch(name) or not source:
            option = f"--{field.field_name} NAME=PATH"
            raise ValueError(f"must have the form {option}, for example yelp=data/yelp.csv")
        if name in sources:
            raise ValueError(f"names {name!r} twice; give each set a different name")
        sources[name] = source
    return sources


Sources = Annotated[dict[str, str], BeforeValidator(named_sources)]


class SetSources(BaseModel):
    """Sources of the sets that are evaluated in addition to the validation rows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shift: Sources = Field(
        default_factory=dict, description="Labeled data under distribution shift, by name."
    )
    adversarial: Sources = Field(
        default_factory=dict, description="Labeled adversarial data, by name."
    )
    anomaly: Sources = Field(
        default_factory=dict, description="Out-of-distribution texts, by name."
    )
    suite: str | None = Field(
        default=None,
        description="Predefined collection of sets: `sentiment`, `entailment`, or your own TOML "
        "file.",
    )
    data_root: Path | None = Field(
        default=None,
        description="Folder with a folder for each task (in the layout of GLUE, CLUE or Temper) "
        "and the sets of `suite`. Default: the environment variable TEMPER_DATA.",
    )
    fit: Annotated[str | None, BeforeValidator(source_name)] = Field(
        default=None,
        description="In-distribution rows to fit OOD detectors on. Default: the training rows "
        "of the run.",
    )
    held_out: Annotated[str | None, BeforeValidator(source_name)] = Field(
        default=None,
        description="Labeled rows, neither trained on nor evaluated, to fit a temperature on.",
    )
    seen_rows: Literal["drop", "keep"] = Field(
        default="drop",
        description="Labeled rows that the model was trained on: `drop` removes them from the "
        "scores, `keep` scores them.",
    )
    _found: Any = PrivateAttr(None)

    @model_validator(mode="after")
    def _look_for_the_suite(self) -> Self:
        suite = self._found = _suite(self.suite, self.data_root)
        names = [
            name
            for kind in ("shift", "adversarial", "anomaly")
            for name in (*getattr(self, kind), *(suite.suite.sets(kind) if suite else ()))
        ]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SettingError(
                f"The set name {twice[0]!r} is given twice (sets of the suite count too). Give "
                "each set a different name."
            )
        return self

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """Create and check sources; settings that are None count as not given."""
        given = {name: value for name, value in settings.items() if value is not None}
        return section(cls, "sets", given)

    @property
    def found_suite(self) -> FoundSuite | None:
        suite: FoundSuite | None = self._found
        return suite

    def named(self, kind: str) -> dict[str, str]:
        """Return name -> source of the sets of a kind, those of the suite last."""
        sources: dict[str, str] = getattr(self, kind)
        entries = {} if self._found is None else self._found.sets[kind]
        return {**sources, **{name: entry.source for name, entry in entries.items()}}

    def given(self) -> list[str]:
        """Return the sources given by options, without those of a suite."""
        kinds = [*self.shift.values(), *self.adversarial.values(), *self.anomaly.values()]
        return [source for source in (*kinds, self.fit, self.held_out) if source is not None]

    @property
    def missing(self) -> dict[str, str]:
        """Set of the suite that is not measured -> reason."""
        return {} if self._found is None else self._found.missing

    def completed(self, tree: Mapping[str, Any]) -> Tree:
        """Return unchecked nested settings, with those that the suite sets added."""
        table = tree.get("evaluate", {})
        merge = None if self._found is None else self._found.suite.merge
        if merge is None or not isinstance(table, Mapping):
            return dict(tree)
        return {**tree, "evaluate": {"merge": merge, **table}}

    def detects(self, settings: EvaluationSettings) -> bool:
        """Return whether an OOD detector that is fitted on in-distribution rows is measured."""
        anomalies = self.anomaly or (self._found is not None and self._found.suite.anomaly)
        return bool(anomalies) and "anomaly" in settings.perspectives

    def faults(self, settings: EvaluationSettings) -> list[str]:
        """Return errors about given sets that no measured perspective reads."""
        faults = []
        if self.fit is not None and not self.detects(settings):
            faults.append(
                "`sets.fit` names rows that OOD detectors learn from, but no OOD texts "
                "are measured. Leave it out, or pass --anomaly NAME=PATH."
            )
        if self.held_out is not None and "calibration" not in settings.perspectives:
            faults.append(
                "`sets.held_out` names rows that a temperature is fitted on, but `calibration` is "
                "not measured. Leave it out, or add that perspective."
            )
        return faults


def _suite(name: str | None, root: Path | str | None) -> FoundSuite | None:
    if name is None:
        if root is not None:
            raise SettingError(
                "`data_root` is the folder of a suite's sets, but there is no suite. Pass --suite "
                "NAME, or leave it out."
            )
        return None
    from temper.data.suites.suite import find_sets, read_suite

    suite = read_suite(name)
    root = os.environ.get(ROOT) if root is None else root
    if not root:
        raise SettingError(
            f"Suite {suite.name!r} looks for its sets in a folder of data, and none is named. Set "
            f"the environment variable {ROOT}, or pass --set data_root=DIR."
        )
    return find_sets(suite, root)
