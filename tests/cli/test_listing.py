"""Lists of methods as text, as JSON, and in the docs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from temper import methods
from temper.methods import registry
from tests.cli.calls import call, json_output, refused
from tests.methods.test_plugins import METHOD


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Take back what a command imported."""
    methods.names()
    before = registry.registered()
    yield
    registry.forget_since(before)
    sys.modules.pop("planted_listing", None)


def test_list_without_a_kind_prints_the_kinds() -> None:
    listed = call("list").stdout
    for kind in ("methods", "recipes", "settings", "models", "perspectives", "tasks", "suites"):
        assert kind in listed


def test_settings_are_found_by_a_part_of_their_name() -> None:
    names = [row["setting"] for row in json_output("list", "settings", "lora")]
    assert names[:2] == ["train.lora", "train.lora.rank"]
    assert all("lora" in name for name in names)
    rows = [
        row
        for row in json_output("list", "settings", "architecture.")
        if "If the name is " in row["meaning"]
    ]
    assert ["architecture.filters", 100] in [[row["setting"], row["default"]] for row in rows]
    refused(call("list", "settings", "no such setting"), "no such setting")


def test_methods_are_listed_with_costs_and_conflicts() -> None:
    rows = {row["name"]: row for row in json_output("list", "methods")}
    assert set(rows["uegr"]) == {"name", "summary", "passes", "memory", "conflicts", "paper"}
    assert rows["uegr"]["conflicts"] == {
        "losses": ["perturbation", "sub-models"],
        "rule": ["mask"],
    }
    assert rows["plain"]["conflicts"] == {"losses": [], "rule": []}
    heading = call("list", "methods").stdout.splitlines()[0]
    assert heading.split() == ["name", "summary", "passes"]
    assert "child_tuning_d" in call("list", "methods", "uegr").stdout
    assert "child_tuning_d" not in call("list", "methods", "plain").stdout


@pytest.mark.parametrize("width", [100, 60])
def test_a_narrow_terminal_does_not_break_names(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.console import Console

    monkeypatch.setattr("temper.cli.screen._wide", lambda: Console(width=width, highlight=False))
    lines = call("list", "methods").stdout.splitlines()
    assert all(len(line) <= width for line in lines)
    firsts = {line.split(" ")[0] for line in lines}
    assert set(methods.names()) <= firsts


def test_a_file_s_methods_are_listed_and_trained(
    tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    path = tmp_path / "planted_listing.py"
    path.write_text(METHOD.format(name="mine"), encoding="utf-8")
    assert "mine" in [row["name"] for row in json_output("list", "methods", "--import", path)]
    record = json_output(
        "train", "--import", path, "--method", "mine", "--model", tiny_model,
        "--data", tiny_data / "reviews", "--set", "train.max_steps=1", "--device", "cpu",
        "--out", tmp_path / "run",
    )  # fmt: skip
    assert record["method"] == "mine"
    refused(call("list", "methods", "--import", tmp_path / "gone.py"), "There is no file")


def test_a_new_method_is_written_to_the_given_file(tmp_path: Path) -> None:
    result = json_output("new-method", "mine", "--into", tmp_path)
    assert result == {
        "method": str(tmp_path / "mine.py"),
        "test": str(tmp_path / "test_mine.py"),
        "card": str(tmp_path / "mine.md"),
    }
    refused(call("new-method", "mine", "--into", tmp_path), "already exists")
    shown = call("new-method", "other", "--into", tmp_path).stdout
    assert f"temper train --import {tmp_path / 'other.py'} --method other" in shown


def test_the_version_is_printed() -> None:
    import temper

    result = call("--version")
    assert (result.exit_code, result.stdout) == (0, f"temper {temper.__version__}\n")
