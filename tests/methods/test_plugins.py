"""Methods from outside the package: a file, a module, an installed package's entry point."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from temper.cluster.plugins import load, loaded
from temper.errors import SettingError
from temper.methods import build, names, registry

METHOD = '''
from temper.methods import register
from temper.methods.plain import Plain

@register("{name}", summary="s", cost="3F", memory="none", paper="p")
class Mine(Plain):
    """Mine."""
'''

PERSPECTIVE = """
from dataclasses import replace
from temper.evaluation.perspectives import perspective

MINE = replace(perspective("shift"), title="Mine")
"""


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Take back what a test registered and imported."""
    names()
    before, modules = registry.registered(), set(sys.modules)
    yield
    registry.forget_since(before)
    for module in set(sys.modules) - modules:
        if module.startswith("planted"):
            del sys.modules[module]


def written(folder: Path, text: str, *, file: str = "planted_one.py") -> str:
    (folder / file).write_text(text, encoding="utf-8")
    return str(folder / file)


def test_a_file_is_imported_once_and_registers_its_methods(tmp_path: Path) -> None:
    path = written(tmp_path, METHOD.format(name="mine"))
    module = load(path)
    assert load(path) is module
    assert "mine" in names()
    assert type(build("mine + at").composed()[0]) is module.Mine


def test_a_plugin_loaded_twice_is_listed_once(tmp_path: Path) -> None:
    path = written(tmp_path, METHOD.format(name="mine"))
    load(path)
    load(path)
    assert loaded() == (path,)


def test_a_module_is_imported_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, METHOD.format(name="mine"), file="planted_two.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    load("planted_two")
    assert "mine" in names()


def test_the_error_of_failing_plugin_code_has_its_line_and_registers_no_method(
    tmp_path: Path,
) -> None:
    path = written(tmp_path, METHOD.format(name="mine") + "\nraise RuntimeError('halfway')\n")
    for _ in range(2):
        message = r"RuntimeError: halfway \(.*planted_one\.py, line 9\)"
        with pytest.raises(SettingError, match=message):
            load(path)
    assert "mine" not in names()
    assert "planted_one" not in sys.modules


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (None, "", r"There is no file nowhere\.py"),
        ("planted.py", METHOD.format(name="at"), "A method named 'at' is registered already"),
        ("planted.py", PERSPECTIVE, "A perspective named 'shift' is registered already"),
        ("json.py", "", "a module named 'json' is loaded already"),
    ],
)
def test_an_invalid_plugin_file_raises_an_error_with_the_reason(
    file: str | None, text: str, message: str, tmp_path: Path
) -> None:
    what = "nowhere.py" if file is None else written(tmp_path, text, file=file)
    with pytest.raises(SettingError, match=message):
        load(what)
    assert build("at").name == "at"


def test_packages_register_methods_by_entry_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, METHOD.format(name="mine"), file="planted_three.py")
    written(tmp_path, "raise KeyError('gone')\n", file="planted_four.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    installed = tmp_path / "planted-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Name: planted\nVersion: 1.0\n", encoding="utf-8")
    offered = "[temper.methods]\nmine = planted_three\n"
    (installed / "entry_points.txt").write_text(offered, encoding="utf-8")
    registry._load.cache_clear()
    assert "mine" in names()
    (installed / "entry_points.txt").write_text(offered + "broken = planted_four\n")
    importlib.invalidate_caches()
    registry._load.cache_clear()
    with pytest.raises(SettingError, match=r"entry point broken = planted_four.*KeyError: 'gone'"):
        names()
    (installed / "entry_points.txt").unlink()
    assert "at" in names()
