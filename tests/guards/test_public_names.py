"""The package's front door is short, and everything behind it is documented."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import temper

ROOT = Path(__file__).resolve().parents[2]
MOST_NAMES = 25
# Parameters that documentation may leave out: they are what Python says they are.
PLAIN = {"self", "cls", "args", "kwargs"}


def parameters(thing: object) -> list[str]:
    """Return the names that a caller may pass to a function or class."""
    if not callable(thing):
        return []
    return [name for name in inspect.signature(thing).parameters if name not in PLAIN]


def undocumented(thing: object) -> list[str]:
    """Return the parameters that a docstring leaves out, its own or one that it inherits from."""
    family = inspect.getmro(thing) if inspect.isclass(thing) else (thing,)
    text = "\n".join(inspect.getdoc(member) or "" for member in family)
    return [name for name in parameters(thing) if f"{name}:" not in text]


def test_the_front_door_is_short_and_sorted_by_no_accident() -> None:
    assert len(temper.__all__) <= MOST_NAMES
    assert len(set(temper.__all__)) == len(temper.__all__)


@pytest.mark.parametrize("name", sorted(temper.__all__))
def test_a_public_name_exists_and_says_what_it_is_and_takes(name: str) -> None:
    thing = getattr(temper, name)
    if isinstance(thing, str):
        return
    assert inspect.getdoc(thing), f"temper.{name} has no docstring"
    assert undocumented(thing) == []


def test_a_missing_parameter_is_noticed() -> None:
    def act(first: int, second: int) -> None:
        """Act.

        Args:
            first: The first.
        """

    assert undocumented(act) == ["second"]


def test_the_package_file_holds_no_logic() -> None:
    tree = ast.parse((ROOT / "src" / "temper" / "__init__.py").read_text(encoding="utf-8"))
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While | ast.Try)]
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    assert loops == []
    assert classes == []
