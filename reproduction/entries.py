"""Entries of the files of tables, and the printed numbers that someone with a paper writes down."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from temper.errors import SettingError, faults
from temper.training.assignments import read_toml


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


def printed_entries(path: Path) -> list[Printed]:
    """Read a file of ``[[printed]]`` entries.

    Args:
        path: The file.

    Returns:
        The numbers.

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
    numbers, lines = [], []
    for place, entry in enumerate(entries, start=1):
        try:
            numbers.append(Printed.model_validate(entry))
        except ValidationError as error:
            lines += [f"{path}, entry {place}: {said}" for said in faults(error, Printed, "")]
    if lines:
        raise SettingError("\n".join(lines))
    return numbers
