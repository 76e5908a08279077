"""Names of methods, and which methods cannot be combined."""

from __future__ import annotations

import pytest

from temper import methods
from temper.errors import CompositionError, SettingError
from temper.study.plan import columns_of
from temper.training.config import RunConfig


def test_vanilla_is_an_alias_of_plain() -> None:
    # Aliases are resolved when they are read, so metadata has one name.
    data = {"source": "reviews.csv"}
    runs = [
        RunConfig.of({"model": "minilm", "data": data, "method": {"name": name}})
        for name in ("vanilla", "plain")
    ]
    assert runs[0].method_name == runs[1].method_name == "plain"
    assert methods.configure("vanilla + r_drop").name == methods.configure("plain + r_drop").name
    assert columns_of(["vanilla"], []) == columns_of(["plain"], [])
    assert "vanilla" not in methods.names()


@pytest.mark.parametrize("name", ["mine.py", "mine.py:Mine", "at + my/mine.py:Mine"])
def test_a_file_as_a_method_raises_an_error_that_names_import(name: str) -> None:
    with pytest.raises(SettingError, match=r"--import (my/)?mine\.py"):
        methods.configure(name)


@pytest.mark.parametrize("name", methods.names())
def test_combining_incompatible_methods_raises_an_error(name: str) -> None:
    for other in methods.entry(name).incompatible:
        assert name in methods.entry(other).incompatible
        with pytest.raises(CompositionError):
            methods.configure(f"{name} + {other}")
