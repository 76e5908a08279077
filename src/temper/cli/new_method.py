"""``temper new-method``: start a method of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from temper.cli import options
from temper.cli.screen import print_json, say


def new_method(
    name: Annotated[str, typer.Argument(help="The method's name, for example my_method.")],
    *,
    into: Annotated[
        Path,
        typer.Option(
            "--into",
            help="Folder to write into; the root of a clone of Temper gets the files in their "
            "places.",
        ),
    ] = Path("."),
    as_json: options.Json = False,
) -> None:
    """Write a working method with its test and its card, to be changed into your own."""
    from temper.methods.scaffold import new_method as write

    method, test, card = write(name, into)
    if as_json:
        print_json({"method": str(method), "test": str(test), "card": str(card)})
        return
    say(f"Method: {method}", as_json=False)
    say(f"Test:   {test} (python -m pytest {test})", as_json=False)
    say(f"Card:   {card}", as_json=False)
    if method.name == str(method.relative_to(into)):
        say(f"Use it: temper train --import {method} --method {name} ...", as_json=False)
