"""What a method's settings are, as its class says it: defaults, meanings, presets."""

from __future__ import annotations

import re
from typing import Any

from temper.methods.registry import entry

ARGUMENT = re.compile(r"^        (\w+): (.*(?:\n {12}.*)*)", re.MULTILINE)


def settings(name: str) -> list[dict[str, Any]]:
    """Describe the settings of a method.

    Args:
        name: A registered name.

    Returns:
        A mapping for each setting: ``setting``, ``default``, ``meaning``.

    Raises:
        SettingError: If no method has that name.

    Example:
        >>> [each["setting"] for each in settings("r_drop")]
        ['weight', 'divergence', 'reduction']
    """
    config = entry(name).config
    meanings: dict[str, str] = {}
    for base in reversed(config.__mro__):
        for setting, text in ARGUMENT.findall(base.__doc__ or ""):
            meanings[setting] = " ".join(text.split())
    return [
        {"setting": setting, "default": field.default, "meaning": meanings.get(setting, "")}
        for setting, field in config.model_fields.items()
    ]


def presets(name: str) -> dict[str, dict[str, Any]]:
    """Return the published settings of a method by the name of their preset.

    Args:
        name: A registered name.

    Raises:
        SettingError: If no method has that name.
    """
    found: dict[str, dict[str, Any]] = getattr(entry(name).config, "PRESETS", {})
    return {preset: dict(values) for preset, values in found.items()}
