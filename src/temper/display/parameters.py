"""The named parameters of a condition: radius, norm, sigma, rate, layer and the like."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

Value = float | int | str | bool


class Parameters(dict[str, Value]):
    """Named values that cannot be changed, so that a condition can be looked up by them.

    Args:
        values: Name to value; the order does not count.

    Example:
        >>> Parameters(radius=0.25, norm="l2").to_text()
        '{"norm": "l2", "radius": 0.25}'
    """

    def __init__(
        self, values: Mapping[str, Value] | Iterable[tuple[str, Value]] = (), **named: Value
    ) -> None:
        super().__init__(sorted({**dict(values), **named}.items()))

    def __hash__(self) -> int:  # type: ignore[override]
        """Return the same number for the same values."""
        return hash(frozenset(self.items()))

    def _refuse(self, *values: Any, **named: Any) -> NoReturn:
        raise TypeError("Parameters cannot be changed; make new ones.")

    __setitem__ = __delitem__ = _refuse
    update = pop = popitem = clear = setdefault = _refuse

    def number(self, name: str) -> float | None:
        """Return a parameter's number, None where it has none of that name."""
        value = self.get(name)
        return None if value is None or isinstance(value, str) else float(value)

    def without(self, *names: str) -> Parameters:
        """Return the other parameters."""
        return Parameters({name: value for name, value in self.items() if name not in names})

    def to_text(self) -> str:
        """Write them as JSON, the same text for the same values."""
        return json.dumps(self, ensure_ascii=False, allow_nan=False)

    @classmethod
    def of_text(cls, text: str) -> Parameters:
        """Read what `to_text` wrote.

        Raises:
            ValueError: It is no JSON object.
        """
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError(f"Parameters must be a JSON object, got {text!r}.")
        return cls(values)
