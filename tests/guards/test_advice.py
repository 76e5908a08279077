"""Options and settings that messages, help texts and docstrings name exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from typer.main import get_command

from temper.cli.app import app
from tests.cli.calls import json_output

SOURCES = Path(__file__).resolve().parents[2] / "src" / "temper"
COMMANDS = get_command(app).commands  # type: ignore[attr-defined]
OPTIONS = {
    name
    for command in COMMANDS.values()
    for parameter in command.params
    for name in (*parameter.opts, *parameter.secondary_opts)
} | {"--help", "--version"}
OTHER_TOOLS = {"--nproc-per-node", "--nproc", "--head"}
"""Options of torchrun and Ray."""
SETTINGS = {row["setting"] for row in json_output("list", "settings")} | {"data_root"}
PLACEHOLDERS = {"and", "method", "override"}


def unknown_names(text: str) -> Iterator[str]:
    """Yield the options and settings that a text names and that do not exist."""
    for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text):
        if option not in OPTIONS | OTHER_TOOLS:
            yield option
    for command, rest in re.findall(r"temper ([a-z-]+)( [^.;`]*)", text):
        if command in COMMANDS:
            taken = {name for each in COMMANDS[command].params for name in each.opts}
            options = re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", rest)
            yield from (f"{command} {option}" for option in options if option not in taken)
    for setting in re.findall(r"--set ([a-z_]+(?:\.[a-z0-9_]+)*)", text):
        if setting not in SETTINGS | PLACEHOLDERS:
            yield setting


def strings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_messages_name_options_and_settings_that_exist() -> None:
    wrong = {
        (path.relative_to(SOURCES), name)
        for path in SOURCES.rglob("*.py")
        for text in strings(path)
        for name in unknown_names(text)
    }
    assert wrong == set()


def test_a_wrong_option_and_a_wrong_setting_are_found() -> None:
    text = "Reduce --batch-sise, or give --set data.kinds=regression or --set data.kind=regression."
    assert list(unknown_names(text)) == ["--batch-sise", "data.kinds"]
    assert list(unknown_names("Run: temper predict RUN --epochs 2")) == ["predict --epochs"]
