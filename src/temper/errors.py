"""The errors of Temper: messages have the expected and the actual value, the place and advice."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, get_args

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError


class TemperError(Exception):
    """Base of all errors that a user can cause and fix.

    The command line prints only the message and exits with ``exit_code``. Overlong messages and
    words are shortened.
    """

    exit_code = 2

    def __init__(self, message: object = "") -> None:
        words = re.sub(rf"\S{{{LONGEST + 1},}}", lambda word: shortened(word[0]), str(message))
        super().__init__(shortened(words, longest=LONGEST_MESSAGE))


class SettingError(TemperError):
    """Report a setting that is unknown, out of bounds or in conflict with another."""


class FieldError(SettingError):
    """Report wrong fields of a method's settings."""

    def __init__(self, error: ValidationError, settings: type[BaseModel], prefix: str) -> None:
        super().__init__("\n".join(faults(error, settings, prefix)))
        self._checked = (error, settings)

    def under(self, prefix: str) -> SettingError:
        """Return the same error with another prefix of the field names, such as ``"method."``."""
        return FieldError(*self._checked, prefix)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it as a `SettingError`, so that it can cross processes."""
        return SettingError, (str(self),)


class DataError(TemperError):
    """Report data that cannot be read or does not fit the task."""


class UnlabeledError(DataError):
    """Report data without labels where labels are needed."""


class ModelError(TemperError):
    """Report a model that cannot be loaded or that a method cannot be applied to."""


class CompositionError(TemperError):
    """Report two methods, or parts of one, that conflict."""


class CheckpointError(TemperError):
    """Report a checkpoint or run folder that is missing, damaged or made with other settings."""


class LockedError(CheckpointError):
    """Report a folder that another process is writing, and which process that is."""


class WriteError(CheckpointError):
    """Report a file that could not be written, with the reason."""


class HubError(TemperError):
    """Report that the Hugging Face Hub cannot be reached or rejected a request."""


class Terminated(SystemExit):
    """Exit after SIGTERM, with code 143; raised once the state is saved."""

    def __init__(self, code: int = 143) -> None:
        super().__init__(code)


class MemoryLimitError(TemperError):
    """Report too little memory, on a GPU or the CPU."""


class ProcessLostError(TemperError):
    """Report that another process of a distributed training has ended or does not respond."""


class OtherProcessError(TemperError):
    """Report that another process of the same run failed; that process reports the reason."""


class NonFiniteError(TemperError):
    """Report a NaN or infinite loss: its step (from 0), loss term and row ids."""

    def __init__(self, message: str, *, step: int, term: str, rows: list[int]) -> None:
        super().__init__(message)
        self.step = step
        self.term = term
        self.rows = rows

    def __reduce__(self) -> tuple[Any, ...]:
        made = partial(NonFiniteError, step=self.step, term=self.term, rows=self.rows)
        return made, (str(self),)


@dataclass(frozen=True)
class Option:
    """Annotation of a setting with its command-line option, such as ``--model NAME``."""

    usage: str


LONGEST = 400
"""Maximum length of a text of other origin (user, library) in a message, in characters."""
LONGEST_VALUE = 60
LONGEST_LIST = 4000
LONGEST_MESSAGE = 12_000


def shortened(text: str, *, longest: int = LONGEST) -> str:
    """Replace the middle of a text that is too long for a message by ``...``.

    Example:
        >>> shortened("a" * 50, longest=21)
        'aaaaaaaa ... aaaaaaaa'
    """
    half = (longest - 5) // 2
    return text if len(text) <= longest else f"{text[:half]} ... {text[-half:]}"


def brief(value: object) -> str:
    """Return the `repr` of a value for a message, shortened to 60 characters.

    Example:
        >>> brief("good"), len(brief(["good"] * 9999))
        ("'good'", 59)
    """
    # Tables of other libraries are written in lines.
    return shortened(" ".join(repr(value).split()), longest=LONGEST_VALUE)


def one_line(text: str) -> str:
    r"""Return the message of another library as one short line.

    Example:
        >>> one_line("refused:\n  no room")
        'refused: no room'
    """
    return shortened(" ".join(text.split()))


SECRETS = re.compile(r"((?<!abfs)(?<!abfss):/{1,2})[^/\s]*@|\?\S+")


def shown(text: object) -> str:
    """Remove user, password and query, which may be secret, from the URLs in a text.

    The part before the @ of ``abfs://`` is the name of a container, and is kept.

    Example:
        >>> shown("ftp://user:secret@host/x"), shown("https://host/x?sig=SECRET")
        ('ftp://host/x', 'https://host/x')
    """
    return SECRETS.sub(r"\1", str(text))


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the error message for an unknown name, with near matches and all known names.

    Example:
        >>> unknown("method", "uerg", ["plain", "uegr"])
        "Unknown method 'uerg'. Did you mean 'uegr'? Known: plain, uegr."
    """
    names = sorted(shortened(item, longest=LONGEST_VALUE) for item in known)
    # A single name that is nearly the same, or two that are similar.
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.9)
    near = near or difflib.get_close_matches(name, names, n=2, cutoff=0.5)
    guess = f" Did you mean {' or '.join(repr(match) for match in near)}?" if near else ""
    listed = shortened(", ".join(names), longest=LONGEST_LIST)
    return f"Unknown {kind} {brief(name)}.{guess} Known: {listed or 'none'}."


def install_command(extra: str) -> str:
    """Return the pip command that installs one of Temper's extras."""
    # Temper is not on a package index, so the command names packages instead of the extra.
    marked = re.compile(rf"^([^;]+);.*extra == [\"']{re.escape(extra)}[\"']")
    result = (marked.match(requirement) for requirement in metadata.requires("temper-lm") or ())
    return "pip install " + " ".join(shlex.quote(item[1].strip()) for item in result if item)


def _place(loc: tuple[int | str, ...], settings: type[BaseModel]) -> tuple[str, list[str]]:
    """Return the dotted name of a wrong field, and the valid names in its table."""
    field = str(loc[0]) if loc else ""
    fields = settings.model_fields
    tables = {name: tables_of(fields[name].annotation) for name in fields}
    # Settings may have further tables whose names are known only at run time.
    tables |= {name: [table] for name, table in getattr(settings, "sections", dict)().items()}
    if field not in tables or len(loc) < 2:
        inner = [f"{name}.{key}" for name in tables for key in _keys(tables[name])]
        # A name that is in only one table is most likely meant.
        moved = [path for path in inner if path.endswith(f".{field}")]
        return field, moved or [*tables, *inner]
    tables_here = tables[field]
    # If a field accepts several tables, pydantic puts the table's name before the field.
    inside = loc[2:] if len(tables_here) > 1 else loc[1:]
    if not tables_here or not inside:
        return field, list(fields)
    return f"{field}.{inside[0]}", [f"{field}.{key}" for key in _keys(tables_here)]


def tables_of(annotation: Any) -> list[type[BaseModel]]:
    """Return the pydantic models that a field's annotation allows."""
    # `Annotated` types also have the attributes of their class, so only classes count.
    parts = [part for part in _within(annotation) if isinstance(part, type)]
    return [part for part in parts if hasattr(part, "model_fields")]


def _keys(tables: Iterable[type[BaseModel]]) -> list[str]:
    return list(dict.fromkeys(key for table in tables for key in table.model_fields))


def _within(annotation: Any) -> list[Any]:
    return [annotation, *(item for part in get_args(annotation) for item in _within(part))]


_WORDS = {
    "^(Value error,|Input|Tuple|List|String|Dictionary) ": "",
    "should (?=be|have)": "must ",
    "must be greater than or equal to": "must be >=",
    "must be less than or equal to": "must be <=",
    "must be greater than": "must be >",
    "must be less than": "must be <",
    r" after validation, not \d+|, unable to parse .*|, got a number with a .*": "",
}
"""Pattern in pydantic's messages -> replacement."""


def percent_hint(value: object) -> str:
    """Return a hint if a fraction seems to be given in percent; else an empty string.

    Example:
        >>> percent_hint(95), percent_hint(-1)
        (' (perhaps 0.95 was meant)', '')
    """
    if isinstance(value, int | float) and 1 < value < 100:
        return f" (perhaps {value / 100:g} was meant)"
    return ""


def faults(error: ValidationError, settings: type[BaseModel], prefix: str) -> list[str]:
    """Return one message per wrong field, named with ``prefix``, such as ``"train."``."""
    lines: dict[str, list[str]] = {}
    for fault in error.errors(include_url=False):
        field, names = _place(fault["loc"], settings)
        where = f"`{prefix}{field}`" if field else f"`{prefix.rstrip('.')}`"
        if fault["type"] == "too_short" and where in lines:
            # The list is too short only because entries are wrong, which is reported already.
            continue
        if fault["type"] == "extra_forbidden":
            known = [prefix + name for name in names]
            lines[where] = [unknown("setting", prefix + field, known)]
        elif fault["type"] == "missing":
            known_field = settings.model_fields.get(field)
            options = [] if known_field is None else known_field.metadata
            usage = next((option.usage for option in options if isinstance(option, Option)), "it")
            lines[where] = [f"{where} is missing and has no default: pass {usage}."]
        else:
            message, bounds = fault["msg"], fault.get("ctx", {})
            for words, ours in _WORDS.items():
                message = re.sub(words, ours, message)
            if message.endswith("."):
                # `unknown` returns full sentences, which a comma cannot continue.
                came = f" Got {brief(fault['input'])}." if field else ""
                further = f"{where}: {message}{came}"
            else:
                came = f", got {brief(fault['input'])}" if field else ""
                top = bounds.get("lt", bounds.get("le"))
                # Settings that are whole numbers have int bounds, and get no hint.
                if isinstance(top, float) and top == 1:
                    came += percent_hint(fault["input"])
                further = f"{where} {message}{came}."
            lines.setdefault(where, [])
            if further not in lines[where]:
                lines[where].append(further)
    return [" Or: ".join(message) for message in lines.values()]
