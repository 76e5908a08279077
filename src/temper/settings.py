"""Read settings from TOML files and ``KEY=VALUE`` texts, and merge them."""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ValidationError

from temper.errors import SettingError, TemperError, brief, faults

Settings = TypeVar("Settings", bound=BaseModel)
Tree = dict[str, Any]
"""Nested settings, as parsed from TOML."""


class Faults(list[str]):
    """Collects wrong settings, so that one error reports all of them.

    Example:
        >>> faults = Faults()
        >>> with faults.caught():
        ...     raise SettingError("`seed` is wrong.")
        >>> list(faults)
        ['`seed` is wrong.']
    """

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Add the message of an error that is raised inside this context, and continue after it."""
        try:
            yield
        except TemperError as error:
            self += str(error).splitlines()

    def refuse(self) -> None:
        """Raise one `SettingError` with all distinct messages, if there are any."""
        if self:
            raise SettingError("\n".join(dict.fromkeys(self)))


def read_toml(path: Path) -> Tree:
    """Read a TOML file of settings; `SettingError` if it is missing or not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise SettingError(
            f"{path} is not UTF-8 text (byte {error.start}). Save it as UTF-8."
        ) from error
    except (ValueError, RecursionError) as error:
        raise SettingError(f"{path} is not valid TOML: {error}.") from error


def parse_value(text: str) -> Any:
    """Parse the value of ``KEY=VALUE`` as TOML; a bare word is a string.

    Example:
        >>> parse_value("0.1"), parse_value("[1, 2]"), parse_value("linear"), parse_value("true")
        (0.1, [1, 2], 'linear', True)
    """
    text = text.strip()
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError) as error:
        if text[:1] in ("[", "{", '"', "'"):
            raise SettingError(
                f"The value {text!r} is not valid TOML: {error}. Put quotes around each text."
            ) from error
        return text
    # A date, or a line break that opened a second key, was not meant as TOML: keep the text.
    plain = isinstance(parsed["value"], bool | int | float | str | list | dict)
    return parsed["value"] if plain and len(parsed) == 1 else text


def parse_assignment(text: str) -> tuple[tuple[str, ...], Any]:
    """Split ``a.b=VALUE`` into the parts of its key and the parsed value.

    Example:
        >>> parse_assignment("method.epsilon=0.1")
        (('method', 'epsilon'), 0.1)
    """
    name, equals, value = text.partition("=")
    path = tuple(part.strip() for part in name.split("."))
    if not equals or not all(path):
        raise SettingError(
            f"A setting is written KEY=VALUE, for example train.epochs=3, got {text!r}."
        )
    return path, parse_value(value)


def override(tree: Mapping[str, Any], assignments: Iterable[tuple[tuple[str, ...], Any]]) -> Tree:
    """Return nested settings with the values of some keys replaced.

    Raises:
        SettingError: A key is given twice, or a part of it is a value instead of a table.

    Example:
        >>> override({"train": {"epochs": 3}}, [(("train", "epochs"), 1)])
        {'train': {'epochs': 1}}
    """
    result = copy.deepcopy(dict(tree))
    given: dict[tuple[str, ...], Any] = {}
    problems = Faults()
    for path, value in assignments:
        dotted = ".".join(path)
        if path in given and given[path] != value:
            both = f"{brief(given[path])} and {brief(value)}"
            problems.append(f"`{dotted}` is given twice: {both}. Pass it once.")
            continue
        given[path] = value
        table: Any = result
        for depth, part in enumerate(path[:-1], start=1):
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                whole = ".".join(path[:depth])
                came = brief(table)
                problems.append(f"`{dotted}` cannot be set: `{whole}` is {came} and not a table.")
                break
        else:
            table[path[-1]] = value
    problems.refuse()
    return result


def section(settings: type[Settings], name: str, table: Any) -> Settings:
    """Validate a table of settings as a ``settings`` object; an instance is returned as it is.

    Raises:
        SettingError: Lists every wrong setting as ``name.FIELD``.
    """
    if isinstance(table, settings):
        return table
    if not isinstance(table, Mapping):
        raise SettingError(
            f"`{name}` must be a table of settings, got {brief(table)}. Write `{name}.KEY=VALUE`."
        )
    try:
        return settings.model_validate(dict(table))
    except ValidationError as error:
        raise SettingError("\n".join(faults(error, settings, f"{name}."))) from error


DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?")


def known_device(device: str) -> str:
    """Check the name of a device, and return it.

    Raises:
        ValueError: Not auto, cpu, cuda, cuda:N or mps; pydantic reports it.

    Example:
        >>> known_device("cuda:1")
        'cuda:1'
    """
    if not DEVICE.fullmatch(device):
        # pydantic turns it into a fault.
        raise ValueError("must be auto, cpu, cuda, cuda:N or mps")
    return device


Device = Annotated[str, AfterValidator(known_device)]


def named_pairs(given: Any) -> Any:
    """Parse ``MODEL=DATA`` pairs of class names; a mapping is returned as it is.

    Raises:
        ValueError: A pair is malformed or a name occurs twice; pydantic reports it.

    Example:
        >>> named_pairs(["POSITIVE=pos,NEGATIVE=neg"])
        {'POSITIVE': 'pos', 'NEGATIVE': 'neg'}
    """
    if isinstance(given, Mapping):
        return dict(given)
    texts = [given] if isinstance(given, str) else given
    pairs: dict[str, str] = {}
    for text in ",".join(map(str, texts)).split(","):
        model, _, data = (part.strip() for part in text.partition("="))
        if not model or not data:
            raise ValueError("is given as MODEL=DATA pairs, for example POSITIVE=pos,NEGATIVE=neg")
        if model in pairs:
            raise ValueError(f"names {model!r} twice; name each class of the model once")
        pairs[model] = data
    return pairs


LabelMap = Annotated[dict[str, str], BeforeValidator(named_pairs)]
