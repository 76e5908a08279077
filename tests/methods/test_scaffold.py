"""The template of ``temper new-method`` is complete and passes the contract tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from temper.cli.templates import name_fault as fault_of
from temper.cli.templates import start
from temper.cluster.plugins import load
from temper.errors import SettingError
from temper.methods import configure, entry, registry
from tests.methods import test_contracts as contracts


def new_method(name: str, folder: Path) -> list[Path]:
    return start("method", name, folder)


def name_fault(name: str, *, alone: bool) -> str | None:
    return fault_of("method", name, alone=alone)


ROOT = Path(__file__).resolve().parents[2]
NAME = "small_logits_of_a_test"


def make_clone(folder: Path) -> None:
    """Make the folders of a clone."""
    for part in ("src/temper/methods", "tests/methods", "docs/methods"):
        (folder / part).mkdir(parents=True)
    (folder / "src" / "temper" / "__init__.py").touch()
    (folder / "src" / "temper" / "methods" / "registry.py").touch()


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Path]:
    """Return the folder of a new method that is registered for the length of a test."""
    new_method(NAME, tmp_path)
    before = registry.registered()
    load(str(tmp_path / f"{NAME}.py"))
    yield tmp_path
    registry.forget_since(before)
    del sys.modules[NAME]


def test_a_new_method_passes_its_test_and_a_changed_equation_fails_it(tmp_path: Path) -> None:
    tests = [new_method(name, tmp_path)[1].name for name in (NAME, f"{NAME}_changed")]
    changed = tmp_path / f"{NAME}_changed.py"
    text = changed.read_text(encoding="utf-8")
    changed.write_text(text.replace("each.square()", "each.abs()"), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "2 failed, 6 passed" in result.stdout
    assert f"FAILED {tests[0]}" not in result.stdout


def test_a_new_method_takes_any_settings_or_refuses_them_with_one_error(written: Path) -> None:
    contracts.test_any_settings_configure_a_method_or_raise_one_setting_error(NAME)


def test_a_new_method_composes(written: Path) -> None:
    method = configure(f"{NAME} + at + ema", {NAME: {"weight": 0.5}})
    assert method.name == f"{NAME} + at + ema"
    assert [each.name for each in method.composed()] == [NAME, "at", "ema"]
    assert entry(NAME).conflicts == {"losses": [], "rule": []}


def test_a_new_method_is_formatted(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    make_clone(tmp_path)
    method, test, _ = map(str, new_method("tidy", tmp_path))
    # The copy has no other module of Temper, so ruff would take its imports for third-party ones.
    ours = ["--config", "lint.isort.known-first-party=['temper']"]
    for words in (["check", *ours, method, test], ["format", "--check", method, test]):
        result = subprocess.run(
            [sys.executable, "-m", "ruff", *words, "--no-cache"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr


def test_in_a_clone_new_files_are_written_to_their_folders(tmp_path: Path) -> None:
    make_clone(tmp_path)
    paths = new_method("random", tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [
        "src/temper/methods/random.py",
        "tests/methods/test_random.py",
        "docs/methods/random.md",
    ]
    assert "from temper.methods.random import Random\n" in paths[1].read_text(encoding="utf-8")


def test_new_method_overwrites_no_file(tmp_path: Path) -> None:
    (tmp_path / "mine.md").write_text("mine", encoding="utf-8")
    with pytest.raises(SettingError, match=r"mine\.md already exists"):
        new_method("mine", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.md"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("SmallLogits", "got 'SmallLogits'. Try 'small_logits'"),
        ("small-logits", "Try 'small_logits'"),
        ("2nd", "got '2nd'.$"),
        ("../up", "Try 'up'"),
        ("", "got ''.$"),
        ("r_drop", "There is already a method 'r_drop'"),
        ("rdrop", "There is already a method 'r_drop'"),
        ("class", "is already used by"),
        ("preset", "is already used by"),
        ("method", "is already used by"),
        ("step_context", "is already used by"),
        ("random", "is already used by"),
        ("torch", "is already used by"),
    ],
)
def test_an_invalid_method_name_raises_an_error(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=message):
        new_method(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_for_a_new_method_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="nowhere does not exist. Create it first"):
        new_method("mine", tmp_path / "nowhere")
    assert name_fault("mine", alone=True) is None
