"""Settings of an evaluation that differ from others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from temper.evaluation.settings import EvaluationSettings


def changed(settings: EvaluationSettings, values: Mapping[str, Any]) -> EvaluationSettings:
    """Return the settings with some other values; of a perspective's section, with some of them."""
    whole: dict[str, Any] = settings.model_dump()
    for name, value in values.items():
        within = isinstance(value, Mapping) and isinstance(whole.get(name), dict)
        whole[name] = {**whole[name], **value} if within else value
    return EvaluationSettings(**whole)
