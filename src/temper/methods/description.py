"""Describe the settings of methods for tables in the docs and in `temper list`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from temper.methods.registry import entry
from temper.methods.variants import as_table, kinds_of

_SIGNS = {"ge": "\u2265", "gt": ">", "le": "\u2264", "lt": "<"}


def settings(name: str) -> list[dict[str, Any]]:
    """Return name, default, bounds and meaning of each setting of a method.

    Example:
        >>> [setting["setting"] for setting in settings("r_drop")]
        ['weight', 'divergence', 'reduction']
        >>> settings("r_drop")[0]["bounds"]
        '≥ 0'
    """
    result: list[dict[str, Any]] = []
    for setting, field in entry(name).config.model_fields.items():
        kinds = kinds_of(field)
        default = field.default.kind if kinds else field.default
        takes = " or ".join(kinds) or bounds(field)
        result.append(_described(setting, default, takes, field.description or ""))
        rows: dict[str, dict[str, Any]] = {}
        for kind, variant in kinds.items():
            for key, inner in variant.model_fields.items():
                if key == "kind":
                    continue
                default = None if inner.is_required() else inner.get_default()
                if kind == field.default.kind:
                    default = getattr(field.default, key)
                text = inner.description or ""
                row = _described(f"{setting}.{key}", default, bounds(inner), text)
                rows.setdefault(str(row), {**row, "kinds": []})["kinds"].append(kind)
        for row in rows.values():
            readers = row.pop("kinds")
            alone = (
                ""
                if readers == [field.default.kind]
                else f"If the kind is {' or '.join(readers)}: "
            )
            result.append({**row, "meaning": alone + row["meaning"]})
    return result


def _described(setting: str, default: Any, takes: str, meaning: str) -> dict[str, Any]:
    return {"setting": setting, "default": default, "bounds": takes, "meaning": meaning}


def flat(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten nested settings of a method to dotted names, as in the docs' tables.

    Example:
        >>> flat("uegr", {"epsilon": 0.1, "adaptive": {"low": 0.3}, "mask": False})
        {'epsilon': 0.1, 'adaptive.low': 0.3, 'mask': 'off'}
    """
    result: dict[str, Any] = {}
    for setting, value in values.items():
        field = entry(name).config.model_fields[setting]
        if not kinds_of(field):
            result[setting] = value
            continue
        table = as_table(value, field)
        kind = table.pop("kind")
        if kind != field.default.kind or not table:
            result[setting] = kind
        result |= {f"{setting}.{key}": inner for key, inner in table.items()}
    return result


def bounds(field: FieldInfo) -> str:
    """Return the limits or the choices of a setting, as text.

    Example:
        >>> bounds(entry("lp_ft").config.model_fields["head_learning_rate_scale"])
        '> 0'
        >>> bounds(entry("r_drop").config.model_fields["weight"])
        '≥ 0'
    """
    limits = [
        f"{sign} {getattr(limit, name):g}"
        for stated in field.metadata or _metadata(field.annotation)
        for limit in getattr(stated, "metadata", (stated,))
        for name, sign in _SIGNS.items()
        if getattr(limit, name, None) is not None
    ]
    choices = [str(choice) for choice in _choices(field.annotation)]
    return " or ".join(filter(None, (", ".join(limits), *choices)))


def _metadata(annotation: Any) -> list[Any]:
    """Return the metadata of a type annotation and of the types it consists of."""
    inner = [result for part in get_args(annotation) for result in _metadata(part)]
    return [*getattr(annotation, "__metadata__", ()), *inner]


def _choices(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [choice for part in get_args(annotation) for choice in _choices(part)]
