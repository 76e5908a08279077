"""The help of commands: groups, short summaries, options and examples."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
import typer

import temper
from temper.api.keywords import TABLES
from temper.cli.app import COMMANDS, app
from temper.cli.help import EXAMPLES, assignable
from temper.cli.options import GROUPS
from temper.data.settings import TRAINING_ONLY
from tests.cli.calls import call, refused

ALL = typer.main.get_command(app).commands  # type: ignore[attr-defined]
SOURCE = Path(temper.__file__).parent
MOST = 25
"""Options of a command."""
# Of every command, Ray, torchrun and curl; and a word of a paper between two dashes.
OTHERS = {"--help", "--version", "--head", "--nproc", "--nproc-per-node", "--header", "--unbiased"}


def options(command: str) -> dict[str, str | None]:
    """Return the options of a command with their help."""
    return {
        name: parameter.help
        for parameter in ALL[command].params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if parameter.param_type_name == "option"
    }


def test_every_command_is_in_a_group_with_a_short_summary() -> None:
    summaries = {name: text for group in COMMANDS.values() for name, (_, text) in group.items()}
    assert set(summaries) == set(ALL)
    assert all(len(text) <= 55 for text in summaries.values())
    listed = call("--help").stdout
    assert all(f"{group}:" in listed for group in COMMANDS)
    assert all(text in listed for text in summaries.values())


@pytest.mark.parametrize("command", ALL)
def test_a_command_has_few_options_each_in_a_group_and_with_help(command: str) -> None:
    result = [each for each in ALL[command].params if each.param_type_name == "option"]
    assert len(result) <= MOST
    assert all(options(command).values())
    assert {each.rich_help_panel for each in result} <= {*GROUPS, None}


@pytest.mark.parametrize("command", ALL)
def test_every_option_is_written_out_in_the_source(command: str) -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (SOURCE / "cli").glob("*.py"))
    # A switch is written "--lora/--no-lora".
    assert all(re.search(rf'["/]{name}["/ ]', source) for name in options(command))


def test_messages_name_options_that_exist() -> None:
    known = {name for command in ALL for name in options(command)} | OTHERS
    faults = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named = re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", node.value)
                faults += [f"{path}: {name}" for name in named if name not in known]
    assert faults == []


def test_a_setting_without_an_option_is_named_with_its_table() -> None:
    refused(call("train", "--max-steps", "3"), "Write --set train.max_steps=VALUE.")
    refused(call("train", "--nonsense"), "No such option: --nonsense")
    refused(call("train", "--epochs"), "'--epochs' requires an argument")


WITH_SET = [name for name in ALL if any(each.name == "assignments" for each in ALL[name].params)]


GIVEN: dict[str, tuple[str, ...]] = {
    "fit": ("no.csv",), "check-labels": ("no.csv",), "serve": ("no/model",),
    **dict.fromkeys(("train", "compare", "tune"), ("--data", "no.csv", "--model", "no/model")),
    **dict.fromkeys(("evaluate", "calibrate"), ("no/model", "--data", "no.csv")),
    "predict": ("no/model", "--text", "a"),
    "export": ("no/model", "--data", "no.csv", "--out", "no"),
}  # fmt: skip


@pytest.mark.parametrize("command", WITH_SET)
def test_unknown_option_suggests_only_settings_the_command_accepts(command: str) -> None:
    names = {name for table in TABLES.values() for name in table.model_fields}
    keys = sorted({key for name in names for key in assignable(command, name)})
    assert keys
    result = call(command, *GIVEN[command], *(f"--set={key}=?" for key in keys))
    # Values and data are refused, but no setting.
    assert result.exit_code == 2
    assert "nknown setting" not in result.stderr
    if command in ("evaluate", "calibrate"):
        assert not {f"data.{name}" for name in TRAINING_ONLY} & set(keys)


@pytest.mark.parametrize("command", [name for name in WITH_SET if name != "serve"])
def test_unknown_option_of_another_command_suggests_no_setting(command: str) -> None:
    message = call(command, "--port", "80").stderr
    assert "No such option: --port" in message
    assert "--set" not in message


@pytest.mark.parametrize("example", [each for several in EXAMPLES.values() for each in several])
def test_every_example_is_a_command_that_parses(example: str) -> None:
    program, name, *words = shlex.split(example)
    assert program == "temper"
    ALL[name].make_context(name, words)


def test_help_shows_the_groups_and_whole_examples() -> None:
    output = call("train", "--help").stdout
    for group in ("Data", "Model and method", "Optimization", "Hardware", "Output", "Examples"):
        assert f"\n{group}:\n" in output
    assert all(f"  {example}\n" in output for example in EXAMPLES["train"])
    assert "temper list settings" in output
