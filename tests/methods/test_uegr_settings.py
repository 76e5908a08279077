"""Settings of UEGR that would be ignored cannot be written."""

from __future__ import annotations

from typing import Any

import pytest

from temper.errors import SettingError
from temper.methods import configure


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "uniform", "low": 0.3}, "`UEGR.adaptive`: 'low' belongs to the kind 'gradient'"),
        ({"kind": "fixed", "rates": [0.1, 0.2], "high": 0.5}, "'high' .* its kind is 'fixed'"),
        ({"low": 0.3, "rates": [0.1, 0.2]}, "'rates' belongs to the kind 'fixed'"),
        ("unifrom", "`UEGR.adaptive`: Unknown kind 'unifrom'. Did you mean 'uniform'"),
        ({"lwo": 0.3}, "Unknown setting of the kind 'gradient' 'lwo'. Did you mean 'low'"),
        ("fixed", "`UEGR.adaptive.rates` is missing"),
        (3, "must be one of gradient, uniform, fixed, or a table with such a `kind`"),
    ],
)
def test_rates_of_adaptive_dropout_are_those_of_their_kind(settings: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        configure("uegr", {"adaptive": settings})
