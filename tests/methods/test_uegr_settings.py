"""Settings of UEGR that would be ignored are refused."""

from __future__ import annotations

from typing import Any

import pytest

from temper.errors import SettingError
from temper.methods import configure


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (
            {"adaptive": "uniform", "low": 0.3, "high": 0.5},
            "adaptive='uniform' would ignore low, high",
        ),
        ({"adaptive": "uniform", "high": 0.5}, "ignore high, which only adaptive='gradient' reads"),
        (
            {"adaptive": "fixed", "rates": (0.1, 0.2), "low": 0.0},
            "adaptive='fixed' would ignore low",
        ),
        ({"preset": "paper", "adaptive": "uniform"}, "leave them at low=0.05, high=0.2"),
    ],
)
def test_rates_of_adaptive_dropout_are_refused_where_they_are_not_read(
    settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(SettingError, match=named):
        configure("uegr", settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"adaptive": "uniform"},
        {"adaptive": "gradient", "low": 0.3, "high": 0.5},
        {"preset": "paper", "adaptive": "uniform", "low": 0.05, "high": 0.2},
    ],
)
def test_rates_are_taken_where_they_are_read_or_left_alone(settings: dict[str, Any]) -> None:
    found = configure("uegr", settings)
    assert found.off().off() == found.off()
