"""Each method's settings are described by its own class, and the command shows them."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from temper.cli.app import app
from temper.errors import SettingError
from temper.methods.description import settings
from temper.training.cards import settings_table


def test_uegrs_table_says_what_the_issue_missed() -> None:
    split = [line.split("|") for line in settings_table("uegr").splitlines()]
    lines = {cells[1].strip(" `"): [cell.strip() for cell in cells[2:]] for cells in split}
    assert lines["adaptive.low"][:2] == ["0.05; 0.3 from scratch", "≥ 0, < 1"]
    assert lines["adaptive.high"][0] == "0.2; 0.5 from scratch"
    assert lines["mask.alpha"][:3] == ["0.6", "≥ 0, ≤ 1", "0.6 to 0.95 (Section VI-A)"]
    assert lines["mask.beta"][0] == "1"
    assert lines["train.learning_rate"][0] == "2e-5"
    assert lines["train.epochs"][0] == "3"
    assert lines["train.epochs"][2] == "10 (Section VI-A)"


def test_the_command_shows_one_method() -> None:
    shown = CliRunner().invoke(app, ["list", "methods", "roast"])
    assert shown.exit_code == 0
    for words in (
        "method.SETTING of roast",
        "alpha",
        "sentiment",
        "mask.alpha=0.9, mask.beta=10.0",
    ):
        assert words in shown.stdout
    found = json.loads(CliRunner().invoke(app, ["list", "methods", "roast", "--json"]).stdout)
    assert (found["name"], found["class"]) == ("roast", "RoAST")
    assert "no settings" in CliRunner().invoke(app, ["list", "methods", "vanilla"]).stdout


def test_an_unknown_method_and_another_kind_are_refused() -> None:
    with pytest.raises(SettingError, match="Did you mean 'roast'"):
        settings("rosat")
    result = CliRunner().invoke(app, ["list", "models", "minilm"])
    assert isinstance(result.exception, SettingError) or result.exit_code != 0
