"""``temper new-method`` and ``temper new-perspective``: start one of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from temper.cli import options
from temper.cli.screen import print_json, say
from temper.cli.templates import METHOD, PERSPECTIVE, Scaffold, start

Into = Annotated[
    Path,
    typer.Option(
        "--into",
        help="Folder to write into; the root of a clone of Temper gets the files in their places.",
    ),
]


def new_method(
    name: Annotated[str, typer.Argument(help="The method's name, for example my_method.")],
    *,
    into: Into = Path("."),
    as_json: options.Json = False,
) -> None:
    """Write a working method with its test and its card, to be changed into your own."""
    _start(
        METHOD, name, into, use="temper train --import {file} --method {name} ...", as_json=as_json
    )


def new_perspective(
    name: Annotated[str, typer.Argument(help="The perspective's name, for example my_noise.")],
    *,
    into: Into = Path("."),
    as_json: options.Json = False,
) -> None:
    """Write a working perspective with its test and its card, to be changed into your own."""
    use = "temper evaluate MODEL --import {file} --perspectives default,{name} ..."
    _start(PERSPECTIVE, name, into, use=use, as_json=as_json)


def _start(kind: Scaffold, name: str, into: Path, *, use: str, as_json: bool) -> None:
    file, test, card = start(kind, name, into)
    if as_json:
        print_json({kind.noun: str(file), "test": str(test), "card": str(card)})
        return
    say(f"{kind.noun.capitalize()}: {file}")
    say(f"Test: {test} (python -m pytest {test})")
    say(f"Card: {card}")
    if file.name == str(file.relative_to(into)):
        say(f"Use it: {use.format(file=file, name=name)}")
