"""Variants: settings with several kinds, where each kind has its own settings.

A field is a union with the discriminator ``kind``::

    adaptive: Gradient | Uniform | Fixed = variant(Gradient(), "Dropout rates.")

Its value may be a variant, the name of a kind, or a table. ``kind`` may be omitted if the keys of
the table identify it; otherwise the default's kind is used. Missing keys take the values of the
default if it has the same kind. If one kind is ``off``, ``false`` selects it, and ``true`` the
other kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from temper.errors import unknown

OFF = "off"


class Variant(BaseModel):
    """Base class of the kinds of a setting.

    Example:
        ``mask = {kind = "selective", alpha = 0.6}`` creates a `Selective`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: str

    @property
    def is_off(self) -> bool:
        return self.kind == OFF

    @property
    def values(self) -> dict[str, Any]:
        return {name: value for name, value in self if name != "kind"}


class Off(Variant):
    """The kind that switches a setting off."""

    kind: Literal["off"] = "off"


def variant(default: Variant, description: str) -> Any:
    """Return the pydantic field of a setting with several kinds."""
    return Field(default=default, discriminator="kind", description=description)


def kinds_of(field: FieldInfo) -> dict[str, type[Variant]]:
    """Return kind -> variant for a settings field; empty for a field without variants."""
    choices = [field.annotation, *get_args(field.annotation)]
    variants = [c for c in choices if isinstance(c, type) and issubclass(c, Variant)]
    return {str(variant.model_fields["kind"].default): variant for variant in variants}


def as_table(given: Any, field: FieldInfo) -> dict[str, Any]:
    """Convert a value of a field with variants to a dict with the key ``kind``.

    The value is a variant, the name of a kind, a table, or a boolean if the field may be off. Raise
    a `ValueError` for anything else.
    """
    kinds, default = kinds_of(field), field.default
    if isinstance(given, bool) and OFF in kinds:
        on = next(kind for kind in (default.kind, *kinds) if kind != OFF)
        return {"kind": on if given else OFF}
    if isinstance(given, Variant):
        values = {name: getattr(given, name) for name in given.model_fields_set}
        return {**values, "kind": given.kind}
    if isinstance(given, str):
        return {"kind": given}
    if isinstance(given, Mapping):
        named = set(given) - {"kind"}
        fits = [kind for kind, variant in kinds.items() if named <= variant.model_fields.keys()]
        alone = fits[0] if len(fits) == 1 else default.kind
        return {"kind": alone, **given}
    raise ValueError(f"must be one of {', '.join(kinds)}, or a table with such a `kind`")


def completed(given: Any, field: FieldInfo) -> Any:
    """Return a field's value for pydantic; for a variant, as a dict with its kind and defaults."""
    kinds = kinds_of(field)
    if not kinds:
        return given
    table = as_table(given, field)
    kind = table["kind"]
    if kind not in kinds:
        raise ValueError(unknown("kind", str(kind), kinds))
    fields = kinds[kind].model_fields
    if unknown_names := [name for name in table if name not in fields]:
        name = unknown_names[0]
        owners = [other for other, variant in kinds.items() if name in variant.model_fields]
        if owners:
            raise ValueError(
                f"{name!r} belongs to the kind {' or '.join(map(repr, owners))}, but the kind is "
                f"{kind!r}. Set the kind too, or leave {name!r} out."
            )
        raise ValueError(unknown(f"setting of the kind {kind!r}", name, set(fields) - {"kind"}))
    return {**dict(field.default), **table} if kind == field.default.kind else table


def merged(below: Mapping[str, Any], above: Mapping[str, Any], *, config: type[BaseModel]) -> Any:
    """Override settings with others; dicts of the same variant are merged key by key."""
    result = {**below, **above}
    for name in below.keys() & above.keys() & config.model_fields.keys():
        field = config.model_fields[name]
        if kinds_of(field):
            first, second = as_table(below[name], field), as_table(above[name], field)
            result[name] = {**first, **second} if first["kind"] == second["kind"] else second
    return result
