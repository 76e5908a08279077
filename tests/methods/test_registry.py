"""Names of methods: an alias is replaced where it is read, so records have one name."""

from __future__ import annotations

from temper import methods
from temper.study.plan import columns_of
from temper.training.config import RunConfig


def test_vanilla_is_read_as_plain() -> None:
    data = {"source": "reviews.csv"}
    runs = [
        RunConfig.of({"model": "minilm", "data": data, "method": {"name": name}})
        for name in ("vanilla", "plain")
    ]
    assert runs[0].method_name == runs[1].method_name == "plain"
    assert methods.configure("vanilla + r_drop").name == methods.configure("plain + r_drop").name
    assert columns_of(["vanilla"], []) == columns_of(["plain"], [])
    assert "vanilla" not in methods.names()
