"""Names of methods: aliases are resolved when they are read, so metadata has one name."""

from __future__ import annotations

import pytest

from temper import methods
from temper.errors import SettingError
from temper.study.plan import columns_of
from temper.training.config import RunConfig


def test_vanilla_is_an_alias_of_plain() -> None:
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
