"""The help of commands: groups, short summaries and examples."""

from __future__ import annotations

import shlex

import pytest
import typer

from temper.cli.app import app
from temper.cli.help import COMMANDS, EXAMPLES, GROUPS
from tests.cli.calls import call

ALL = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def test_every_command_is_in_a_group_with_a_short_summary() -> None:
    summaries = {name: text for group in COMMANDS.values() for name, text in group.items()}
    assert set(summaries) == set(ALL)
    assert all(len(text) <= 55 for text in summaries.values())
    listed = call("--help").stdout
    assert all(f"{group}:" in listed for group in COMMANDS)
    assert all(text in listed for text in summaries.values())


def test_every_grouped_name_is_an_option_of_a_command() -> None:
    known = {parameter.name for command in ALL.values() for parameter in command.params}
    assert {name for names in GROUPS.values() for name in names} <= known


@pytest.mark.parametrize("example", [each for several in EXAMPLES.values() for each in several])
def test_every_example_is_a_command_that_parses(example: str) -> None:
    program, name, *words = shlex.split(example)
    assert program == "temper"
    ALL[name].make_context(name, words)


def test_help_shows_the_groups_and_whole_examples() -> None:
    said = call("train", "--help").stdout
    for group in ("Data", "Model and method", "Optimization", "Hardware", "Output", "Examples"):
        assert f"\n{group}:\n" in said
    assert all(f"  {example}\n" in said for example in EXAMPLES["train"])
    assert "temper list settings" in said
