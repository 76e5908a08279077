"""Entries of the files of tables, and the printed numbers that someone with a paper writes down."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from temper.errors import SettingError, faults


class Entry(BaseModel):
    """One entry of a file: nothing that is not known passes."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Printed(Entry):
    """One number as the paper prints it.

    Args:
        case: Name of a case, or ``average``.
        column: Name of a column.
        score: Name of a score.
        line: Of a score with several conditions, such as layers or radii, what our table calls the
            one that is meant.
        value: The digits, a text, so that a last zero counts.
        source: Where it stands: row and column of the table.
    """

    case: str
    column: str
    score: str
    line: str = ""
    value: str
    source: str

    @field_validator("value", mode="before")
    @classmethod
    def _digits(cls, value: object) -> object:
        if not isinstance(value, str) or not re.fullmatch(r"-?\d+(\.\d+)?", value):
            raise ValueError('must be the digits as printed, in quotes, such as "81.20"')
        return value


def printed_entries(path: Path) -> list[Any]:
    """Read a file of ``[[printed]]`` entries.

    Args:
        path: The file.

    Returns:
        The entries, each of the right form.

    Raises:
        SettingError: The file cannot be read, holds something else or nothing, or an entry is
            wrong; all faults at once.
    """
    further = read_toml(path)
    entries = further.get("printed", [])
    odd = [key for key in further if key != "printed"]
    if not odd and not isinstance(entries, list):
        odd = [f"printed = {entries!r}"]
    if odd:
        raise SettingError(
            f"{path} must hold [[printed]] entries only (case, column, score, value, source), got "
            f"{odd[0]!r}."
        )
    if not entries:
        raise SettingError(
            f"{path} holds no printed number. Give [[printed]] entries: case, column, score, "
            "value, source."
        )
    lines = []
    for place, entry in enumerate(entries, start=1):
        try:
            Printed.model_validate(entry)
        except ValidationError as error:
            lines += [f"{path}, entry {place}: {said}" for said in faults(error, Printed, "")]
    if lines:
        raise SettingError("\n".join(lines))
    return list(entries)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        SettingError: It cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror}.") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingError(f"{path} is not valid TOML in UTF-8: {error}.") from error
