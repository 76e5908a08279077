"""Create a method or a perspective from a template: file, test and card."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Annotated, Literal

import typer

from temper import methods
from temper.cli import options
from temper.cli.screen import print_json, say
from temper.errors import SettingError
from temper.evaluation import perspectives
from temper.files import asset

NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
Noun = Literal["method", "perspective"]
FOLDERS: Mapping[Noun, tuple[str, str, str | None]] = {
    "method": ("src/temper/methods", "tests/methods", "docs/methods"),
    "perspective": ("src/temper/evaluation/perspectives", "tests/evaluation", None),
}
"""Folders of the code, the test and the card of a method or a perspective in a clone.

A perspective has no card: docs/evaluation.md describes all of them.
"""


def class_name(name: str) -> str:
    """Return the name of the settings class of a plug-in.

    Example:
        >>> class_name("my_method")
        'MyMethod'
    """
    return "".join(word.capitalize() for word in name.split("_"))


RESERVED = {"name", "preset"}
"""Names that no method may have, because its table of settings uses them as keys."""


def _hides_import(noun: Noun, name: str) -> bool:
    """Whether the class of a new plug-in has the name of one that its template imports."""
    bound = re.compile(rf"^(?:from|import|class)\b.*\b{class_name(name)}\b", re.MULTILINE)
    texts = (asset("temper.cli", f"{noun}/{what}.txt") for what in ("file", "test"))
    return any(bound.search(text) for text in texts)


def start(noun: Noun, name: str, folder: Path | str = ".") -> list[Path]:
    """Create a method or a perspective from a template; return the paths of the new files.

    The files are the code, its test and, for a method, its card. The code is complete: it passes
    its test and the contract tests. Comments mark the lines to replace.

    Args:
        noun: ``method`` or ``perspective``.
        name: Name on the command line: lower case, words joined by ``_``.
        folder: Root of a clone of Temper, where each file goes into its folder; in any other folder
            they are written side by side.

    Raises:
        SettingError: If the name is taken or invalid, the folder does not exist, or a file would be
            overwritten.
    """
    root = Path(folder)
    if not root.is_dir():
        raise SettingError(f"The folder {root} does not exist. Create it first.")
    clone = (root / "src" / "temper" / "methods" / "registry.py").is_file()
    fault = name_fault(noun, name, alone=not clone)
    if fault:
        raise SettingError(fault)
    package, tests, cards = FOLDERS[noun] if clone else ("", "", "")
    files = {
        "file": root / package / f"{name}.py",
        "test": root / tests / f"test_{name}.py",
    }
    if cards is not None:
        files["card"] = root / cards / f"{name}.md"
    taken = [str(path) for path in files.values() if path.exists()]
    if taken:
        raise SettingError(
            f"{', '.join(taken)} already exists and was not changed. Choose another name or folder."
        )
    module = ".".join([*Path(package).parts[1:], name])
    defined = class_name(name) if noun == "method" else name.upper()
    tested = defined if noun == "method" else f"{defined}, shortened"
    imports = [f"from {module} import {tested}"]
    testing = f"from temper.testing import check_{noun}"
    # Third-party imports come first.
    imports = sorted([*imports, testing]) if clone else [testing, "", *imports]
    words = {
        "name": name,
        "title": name.replace("_", " ").capitalize(),
        "class_name": class_name(name),
        "constant": defined,
        "imports": "\n".join(imports),
    }
    for what, path in files.items():
        template = Template(asset("temper.cli", f"{noun}/{what}.txt"))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(template.substitute(words))
    return list(files.values())


def name_fault(noun: Noun, name: str, *, alone: bool) -> str | None:
    """Return why a plug-in's name is invalid, None if it is valid.

    Example:
        >>> name_fault("method", "MyMethod", alone=True)
        "A method's name is lower case with '_' between words, got 'MyMethod'. Try 'my_method'."
        >>> name_fault("method", "my_method", alone=True)
        >>> name_fault("method", "step_context", alone=True) is None
        False
    """
    if not NAME.fullmatch(name):
        spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", name)
        near = re.sub(r"_+", "_", spaced).strip("_").lower()
        guess = f" Try {near!r}." if NAME.fullmatch(near) else ""
        return f"A {noun}'s name is lower case with '_' between words, got {name!r}.{guess}"
    names = methods.names() if noun == "method" else perspectives.names()
    similar = [known for known in names if known.replace("_", "") == name.replace("_", "")]
    if similar:
        return f"There is already a {noun} {similar[0]!r}. Choose a name that is less similar."
    hides = keyword.iskeyword(name) or name in RESERVED or _hides_import(noun, name)
    if alone and not hides:
        spec = importlib.util.find_spec(name)
        hides = name in sys.stdlib_module_names or (spec is not None and spec.origin is not None)
    if hides:
        return (
            f"The name {name!r} is already used by Python or Temper. Give the {noun} another "
            "name that describes it."
        )
    return None


def new_method(
    name: Annotated[str, typer.Argument(help="Name of the new method, for example my_method.")],
    *,
    into: options.Into = Path("."),
    as_json: options.Json = False,
) -> None:
    """Create a working method from a template: code, test and card. Change it into your own."""
    use = "temper train --import {file} --method {name} ..."
    _start("method", name, into, use=use, as_json=as_json)


def new_perspective(
    name: Annotated[str, typer.Argument(help="Name of the new perspective, for example my_noise.")],
    *,
    into: options.Into = Path("."),
    as_json: options.Json = False,
) -> None:
    """Create a working perspective from a template: code and test. Change it into your own."""
    use = "temper evaluate MODEL --import {file} --perspectives default,{name} ..."
    _start("perspective", name, into, use=use, as_json=as_json)


def _start(noun: Noun, name: str, into: Path, *, use: str, as_json: bool) -> None:
    paths = start(noun, name, into)
    if as_json:
        nouns = (noun, "test", "card")
        print_json({noun: str(path) for noun, path in zip(nouns, paths, strict=False)})
        return
    file, test, *cards = paths
    say(f"{noun.capitalize()}: {file}")
    say(f"Test: {test} (python -m pytest {test})")
    for card in cards:
        say(f"Card: {card}")
    if file.name == str(file.relative_to(into)):
        say(f"Use it: {use.format(file=file, name=name)}")
