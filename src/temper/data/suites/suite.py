"""Read a suite file: which sets a task is judged on, where they lie, how they are read."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from temper.errors import SettingError, unknown

KINDS = ("shift", "adversarial", "anomaly")
"""What a set of a suite may be there for."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_FOLDER = Path(__file__).parent


class SuiteSet(BaseModel):
    """Name one set of a suite.

    Args:
        path: File or folder under the data root, a folder with ``@SPLIT`` behind.
        parts: Instead of ``path``, several of them by name, read as one set; the names are the
            groups of their rows unless ``group_column`` is given.
        pairs: Where the rows of a contrast pair stand: ``within`` a part, so that equal pair ids of
            two parts are two pairs; or ``across`` the parts. Only with ``parts``.
        rows: Rows taken at most, drawn by hash; None takes all.
        group_column: Column of the groups; None looks for ``group``.
        without: Labels whose rows are left out, because the task does not have them.
        hub: Id on the Hugging Face Hub, which says where the set can be had from; nothing is
            loaded from there.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str | None = None
    parts: dict[str, str] = Field(default_factory=dict)
    pairs: Literal["within", "across"] = "within"
    rows: Annotated[int, Field(ge=1)] | None = None
    group_column: str | None = None
    without: tuple[str, ...] = ()
    hub: str | None = None

    @model_validator(mode="after")
    def _placed(self) -> Self:
        if (self.path is None) == (not self.parts):
            raise ValueError("must have either a path or parts")
        if "pairs" in self.model_fields_set and len(self.parts) < 2:
            raise ValueError(
                "must have two parts or more for `pairs`, which says whether contrast pairs stand "
                "within a part or across them"
            )
        for path in self.paths.values():
            pure = PurePosixPath(path)
            if not path or pure.is_absolute() or ".." in pure.parts:
                raise ValueError(f"must have paths that lie under the data root, got {path!r}")
        return self

    @property
    def paths(self) -> dict[str, str]:
        """The paths by part; a set in one piece has one part without a name."""
        return self.parts if self.path is None else {"": self.path}


class Suite(BaseModel):
    """Name the sets that a task is judged on.

    Args:
        name: The suite's name: that of its file.
        summary: One line for lists.
        labels: The task's labels by index, for sets that do not name theirs.
        merge: How three NLI classes answer a set with two (``evaluate.merge``); None says nothing.
        shift: Labelled sets from other sources, by name.
        adversarial: Labelled sets that were made to mislead models, by name.
        anomaly: Sets that do not belong to the task, by name; their labels are not read.

    Example:
        >>> read_suite("sentiment").labels
        ('negative', 'positive')
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    summary: str
    labels: Annotated[tuple[str, ...], Field(min_length=2)]
    merge: str | None = None
    shift: dict[str, SuiteSet] = Field(default_factory=dict)
    adversarial: dict[str, SuiteSet] = Field(default_factory=dict)
    anomaly: dict[str, SuiteSet] = Field(default_factory=dict)

    @field_validator(*KINDS)
    @classmethod
    def _named(cls, sets: dict[str, SuiteSet]) -> dict[str, SuiteSet]:
        odd = [name for name in sets if not _NAME.fullmatch(name) or name == "dev"]
        if odd:
            raise ValueError(
                "must name sets with letters, digits, '_', '.' and '-', and none 'dev', got "
                f"{odd[0]!r}"
            )
        return sets

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [name for kind in KINDS for name in self.sets(kind)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"must give each set a name of its own, got {twice[0]!r} twice")
        if not names:
            raise ValueError(f"must name a set, as [{KINDS[0]}.NAME]")
        return self

    def sets(self, kind: str) -> dict[str, SuiteSet]:
        """Return the sets of a kind by name.

        Args:
            kind: One of `KINDS`.
        """
        found: dict[str, SuiteSet] = getattr(self, kind)
        return found


def suite_names() -> tuple[str, ...]:
    """Return the names of the suites that come with Temper."""
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.toml")))


def read_suite(name: str) -> Suite:
    """Read a suite.

    Args:
        name: One of `suite_names`, or the path of a file ``NAME.toml``.

    Returns:
        The checked suite.

    Raises:
        SettingError: There is no such suite, or its file is wrong; all faults at once.
    """
    path = Path(name).expanduser()
    if path.suffix != ".toml":
        if name not in suite_names():
            raise SettingError(
                f"{unknown('suite', name, suite_names())} One of your own is given as FILE.toml."
            )
        path = _FOLDER / f"{name}.toml"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"The suite {path} cannot be read: {error.strerror}.") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingError(f"The suite {path} is not valid TOML in UTF-8: {error}.") from error
    if "name" in content:
        raise SettingError(f"The suite {path}: `name` is that of the file. Leave it out.")
    try:
        return Suite.model_validate({**content, "name": path.stem})
    except ValidationError as error:
        raise SettingError("\n".join(_faults(error, path))) from error


def _faults(error: ValidationError, path: Path) -> list[str]:
    """Say of each fault where it is."""
    found = []
    for fault in error.errors():
        where = [str(part) for part in fault["loc"]]
        if fault["type"] == "extra_forbidden":
            known = SuiteSet if where[0] in KINDS else Suite
            keys = [name for name in known.model_fields if name != "name"]
            text = unknown("key", where.pop(), keys)
        else:
            text = f"{fault['msg'].removeprefix('Value error, ')}."
        found.append(f"The suite {path}, {'.'.join(where) or 'top'}: {text}")
    return found
