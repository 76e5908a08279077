"""What a method's settings are, as its class says it: defaults, bounds, sources, presets."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from temper.importing import argument_texts
from temper.methods.published import Published
from temper.methods.registry import entry

_SIGNS = {"ge": "\u2265", "gt": ">", "le": "\u2264", "lt": "<"}


def settings(name: str) -> list[dict[str, Any]]:
    """Describe the settings of a method.

    Args:
        name: A registered name.

    Returns:
        A mapping for each setting: ``setting``, ``default``, ``bounds``, ``published`` (what the
        paper or its code gives, and where; empty where not known), ``meaning``.

    Raises:
        SettingError: If no method has that name.

    Example:
        >>> [each["setting"] for each in settings("r_drop")]
        ['weight', 'divergence', 'reduction']
        >>> settings("r_drop")[0]["bounds"], settings("r_drop")[0]["published"]
        ('≥ 0', '.5 to 5 (the paper, for the batch mean)')
    """
    config = entry(name).config
    meanings = argument_texts(config)
    sources = published(name)
    return [
        {
            "setting": setting,
            "default": field.default,
            "bounds": bounds(field),
            "published": str(sources.get(setting, "")),
            "meaning": meanings.get(setting, ""),
        }
        for setting, field in config.model_fields.items()
    ]


def published(name: str) -> dict[str, Published]:
    """Return what a method's source gives its settings, and training's as ``train.NAME``.

    Args:
        name: A registered name.

    Raises:
        SettingError: If no method has that name.
    """
    found: dict[str, Published] = getattr(entry(name).config, "PUBLISHED", {})
    return found


def bounds(field: FieldInfo) -> str:
    """Write what values a setting takes: its limits, or its choices.

    Args:
        field: Of a settings class.

    Example:
        >>> bounds(entry("uegr").config.model_fields["low"])
        '≥ 0, < 1'
    """
    limits = [
        f"{sign} {getattr(limit, name):g}"
        for limit in field.metadata
        for name, sign in _SIGNS.items()
        if getattr(limit, name, None) is not None
    ]
    choices = [str(choice) for choice in _choices(field.annotation)]
    return ", ".join(limits) or " or ".join(choices)


def _choices(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [choice for part in get_args(annotation) for choice in _choices(part)]


def presets(name: str) -> dict[str, dict[str, Any]]:
    """Return the published settings of a method by the name of their preset.

    Args:
        name: A registered name.

    Raises:
        SettingError: If no method has that name.
    """
    found: dict[str, dict[str, Any]] = getattr(entry(name).config, "PRESETS", {})
    return {preset: dict(values) for preset, values in found.items()}
