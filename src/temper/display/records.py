"""The JSON files that reports read (docs/formats.md), as pydantic models.

They have only the fields that reports use; optional ones have defaults.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from temper.checkpoints.checkpoint import Checkpoint
from temper.checkpoints.folder import RUN, read_json
from temper.errors import CheckpointError

Value = float | int | str | bool


class Parameters(dict[str, Value]):
    """Parameters of a condition: an immutable, hashable mapping."""

    def __init__(
        self, values: Mapping[str, Value] | Iterable[tuple[str, Value]] = (), **named: Value
    ) -> None:
        super().__init__(sorted({**dict(values), **named}.items()))

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def _refuse(self, *values: Any, **named: Any) -> NoReturn:
        raise TypeError("Parameters cannot be changed; make new ones.")

    __setitem__ = __delitem__ = _refuse
    update = pop = popitem = clear = setdefault = _refuse

    def number(self, name: str) -> float | None:
        value = self.get(name)
        return None if value is None or isinstance(value, str) else float(value)

    def without(self, *names: str) -> Parameters:
        return Parameters({name: value for name, value in self.items() if name not in names})

    def to_text(self) -> str:
        """Return canonical JSON, equal for equal parameters."""
        return json.dumps(self, ensure_ascii=False, allow_nan=False)

    @classmethod
    def of_text(cls, text: str) -> Parameters:
        """Parse the output of `to_text`; raise a `ValueError` if it is not a JSON object."""
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError(f"Parameters must be a JSON object, got {text!r}.")
        return cls(values)


class Record(BaseModel):
    """Base of the records: a JSON object; unknown fields are accepted and kept."""

    # Fields added by newer versions are allowed.
    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)


class TaskRecord(Record):
    """The evaluated task; ``labels`` are in the order of the class indices."""

    kind: str
    metric: str
    labels: list[str] = Field(default_factory=list)


class NamedRecord(Record):
    """The fields that identify a score; ``parameters`` are those of the condition."""

    perspective: str
    set: str
    condition: str = "clean"
    name: str
    parameters: dict[str, float | int | str | bool] = Field(default_factory=dict)


LARGEST = 1e100
"""Maximum absolute value of a score, so that its square is finite."""
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]


class ScoreRecord(NamedRecord):
    """One entry of ``scores.json``.

    Args:
        value: The score; None if it is undefined, for ``reason``.
        standard_error: Standard error over examples, if the score is a mean over them.
        fewest: Number of examples of the smallest class or group; n if the score has no classes or
            groups; None if unknown.
    """

    value: Number | None
    n: int | None = None
    fewest: int | None = None
    low: Number | None = None
    high: Number | None = None
    standard_error: Number | None = None
    higher_is_better: bool | None = None
    reason: str | None = None


class ScoresRecord(Record):
    """``scores.json``."""

    model: str
    task: TaskRecord
    seen: list[str] = Field(default_factory=list)
    notices: list[str] = Field(default_factory=list)
    scores: list[ScoreRecord] = Field(default_factory=list)


class AdapterRecord(Record):
    """The fields of PEFT's ``adapter_config.json`` that name the base model."""

    base_model_name_or_path: str | None = None


class RunRecord(Record):
    """``run.json``."""

    status: str
    key: str
    model: str
    method: str
    seed: int
    settings: dict[str, Any] = Field(default_factory=dict)
    task: TaskRecord | None = None
    data: dict[str, Any] = Field(default_factory=dict)
    notices: list[str] = Field(default_factory=list)
    truncated: float | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    epochs: dict[str, Any] = Field(default_factory=dict)
    passes: float | None = None
    times: dict[str, Any] = Field(default_factory=dict)
    parameters: dict[str, int] = Field(default_factory=dict)
    device: str | None = None


class ColumnRecord(Record):
    """One entry of ``columns`` in ``study.json``."""

    name: str
    method: str
    settings: dict[str, Any] = Field(default_factory=dict)


class CostRecord(Record):
    """Cost of a method's step in seconds, and the ratio to the baseline's step."""

    step_seconds: float | None = None
    over_reference: float | None = None


class StudyRecord(Record):
    """``study.json``.

    If only results were stored, ``record`` has what all runs' records share, ``records`` the rest.
    """

    model: str
    data: dict[str, Any] = Field(default_factory=dict)
    shift: dict[str, Any] = Field(default_factory=dict)
    adversarial: dict[str, Any] = Field(default_factory=dict)
    anomaly: dict[str, Any] = Field(default_factory=dict)
    seeds: list[int]
    reference: str
    columns: list[ColumnRecord]
    runs: dict[str, dict[str, str]] = Field(default_factory=dict)
    cost: dict[str, CostRecord] = Field(default_factory=dict)
    record: dict[str, Any] = Field(default_factory=dict)
    records: dict[str, dict[str, Any]] = Field(default_factory=dict)


_Parsed = TypeVar("_Parsed", bound=Record)


def parse(path: Path, record: type[_Parsed]) -> _Parsed:
    """Read and validate a JSON file; raise a `CheckpointError` that lists all faults."""
    return _checked(path, read_json(path), record)


def run_record(model: Checkpoint) -> RunRecord | None:
    """Return the checked ``run.json`` of a run; None for other models."""
    return None if model.run is None else _checked(model.folder / RUN, model.run, RunRecord)


def _checked(path: Path, content: Mapping[str, Any], record: type[_Parsed]) -> _Parsed:
    try:
        return record.model_validate(content)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(str(part) for part in fault['loc']) or 'file'}: {fault['msg']}"
            for fault in error.errors()
        )
        raise CheckpointError(
            f"{path} does not have the format of docs/formats.md: {faults}. Remove that file and "
            "run the command again that wrote it."
        ) from error
