"""Run commands in the process of the tests, and return their output."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner, Result

from temper.cli.app import app


def call(*arguments: object, text: str | bytes | None = None) -> Result:
    """Run a command with the given stdin."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=text)


def succeed(*arguments: object, text: str | bytes | None = None) -> Result:
    """Run a command that must succeed."""
    result = call(*arguments, text=text)
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    return result


def json_output(*arguments: object, text: str | None = None) -> Any:
    """Return the JSON on stdout of a command that must succeed."""
    return json.loads(succeed(*arguments, "--json", text=text).stdout)


def refused(result: Result, *words: str) -> None:
    """Check exit code 2, an empty stdout, and one message with the words and no traceback."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert result.stderr.count("Error") == 1
    for word in words:
        assert word in result.stderr
