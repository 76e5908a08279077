"""Each method's settings are described by its own class, and the command shows them."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from temper.cli.app import app
from temper.errors import SettingError
from temper.methods.description import settings


def test_list_methods_describes_one_method() -> None:
    shown = CliRunner().invoke(app, ["list", "methods", "roast"])
    assert shown.exit_code == 0
    for words in (
        "method.SETTING of roast",
        "alpha",
        "sentiment",
        "mask.alpha=0.9, mask.beta=10.0",
    ):
        assert words in shown.stdout
    result = json.loads(CliRunner().invoke(app, ["list", "methods", "roast", "--json"]).stdout)
    assert (result["name"], result["class"]) == ("roast", "RoAST")
    assert "no settings" in CliRunner().invoke(app, ["list", "methods", "plain"]).stdout


def test_describing_an_unknown_method_or_another_kind_raises_an_error() -> None:
    with pytest.raises(SettingError, match="Did you mean 'roast'"):
        settings("rosat")
    result = CliRunner().invoke(app, ["list", "models", "minilm"])
    assert isinstance(result.exception, SettingError) or result.exit_code != 0
