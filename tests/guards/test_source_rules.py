"""Banned in source files: pickles, evaluated text, remote code, unfinished work, package hosts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for name in ("src", "reproduction") for path in (ROOT / name).rglob("*.py"))
FOLDERS = ("src", "reproduction", "tests", "docs", "dev", "examples", "recipes", ".ci")
TEXTS = [
    path
    for pattern in ("*.md", "*.py", "*.toml", "*.txt", "*.yaml", "Makefile")
    for path in sorted(ROOT.glob(pattern))
] + [
    path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".md", ".toml", ".txt", ".yaml", ".html", ".css", ".js", ".jinja"}
    or path.name == "run"
]
PICKLING_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
UNSAFE_CALLS = {
    "torch.load",
    "torch.save",
    "pandas.read_pickle",
    "pd.read_pickle",
    "eval",
    "exec",
    "__import__",
    "os.system",
}
# Collectives of torch that pickle what they send.
OBJECTS = {"all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"}
LONGEST_FILE = 600
LONGEST_EXAMPLE = 60
# Written in parts, so that this file does not hold what it looks for.
HOSTS = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("download", "pytorch", "org"),
        ("anaconda", "org"),
        ("npmjs", "org"),
        ("jsdelivr", "net"),
        ("unpkg", "com"),
    )
]
OPEN_END = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")


def dotted(node: ast.expr) -> str:
    """Return ``a.b.c`` of a name or attribute chain, or an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        parent = dotted(node.value)
        return f"{parent}.{node.attr}" if parent else ""
    return ""


def unsafe(source: str) -> Iterator[str]:
    """Yield a description of each unsafe import, call or keyword in a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module or "").split(".")[0]]
            if node.module == "torch":
                names += [f"torch.{alias.name}" for alias in node.names]
        else:
            names = []
        for name in names:
            if name in PICKLING_MODULES | UNSAFE_CALLS:
                yield f"line {node.lineno}: import of {name}"
        if isinstance(node, ast.Call):
            if dotted(node.func) in UNSAFE_CALLS or dotted(node.func).split(".")[-1] in OBJECTS:
                yield f"line {node.lineno}: call of {dotted(node.func)}"
            for keyword in node.keywords:
                off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                if keyword.arg in {"trust_remote_code", "allow_pickle"} and not off:
                    yield f"line {node.lineno}: {keyword.arg} may be on"


def name_of(path: Path) -> str:
    """Return a path relative to the repository, as the test's id."""
    return str(path.relative_to(ROOT))


def test_no_source_pickles_or_evaluates() -> None:
    result = {name_of(path): list(unsafe(path.read_text(encoding="utf-8"))) for path in SOURCES}
    assert {name: faults for name, faults in result.items() if faults} == {}


@pytest.mark.parametrize(
    "fault",
    [
        "import pickle",
        "from pickle import loads",
        "import joblib.externals",
        "from torch import load",
        "torch.load('a.pt')",
        "torch.save({}, 'a.pt')",
        "all_gather_object(found, mine)",
        "eval('1')",
        "model(trust_remote_code=True)",
        "model(trust_remote_code=flag)",
        "numpy.load('a.npy', allow_pickle=True)",
    ],
)
def test_the_rule_against_pickles_notices(fault: str) -> None:
    assert len(list(unsafe(fault))) == 1


@pytest.mark.parametrize("fine", ["model.eval()", "model(trust_remote_code=False)", "import json"])
def test_the_rule_against_pickles_lets_plain_code_be(fine: str) -> None:
    assert list(unsafe(fine)) == []


def test_no_text_names_a_package_host_or_contains_a_todo() -> None:
    assert len(TEXTS) > 20, "the guard no longer finds the files that it reads"
    faults = []
    for path in TEXTS:
        text = path.read_text(encoding="utf-8")
        faults += [f"{name_of(path)}: {host}" for host in HOSTS if host in text]
        faults += [f"{name_of(path)}: {match}" for match in OPEN_END.findall(text)]
    assert faults == []


def test_the_rule_against_open_ends_notices() -> None:
    assert OPEN_END.search("# TO" + "DO: later")
    assert not OPEN_END.search("todos, mastodon")


@pytest.mark.parametrize(
    ("folder", "limit"),
    [
        ("src", LONGEST_FILE),
        ("reproduction", LONGEST_FILE),
        ("tests", LONGEST_FILE),
        ("dev", LONGEST_FILE),
        ("examples", LONGEST_EXAMPLE),
    ],
)
def test_files_stay_short(folder: str, limit: int) -> None:
    lengths = {
        name_of(path): len(path.read_text(encoding="utf-8").splitlines())
        for path in (ROOT / folder).rglob("*.py")
    }
    assert {name: length for name, length in lengths.items() if length > limit} == {}


def test_no_module_has_a_meaningless_name() -> None:
    empty = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "managers"}
    names = {part for path in SOURCES for part in path.relative_to(ROOT).with_suffix("").parts}
    assert names & empty == set()


def test_every_folder_of_modules_is_a_package() -> None:
    # setuptools leaves a folder without __init__.py out of the wheel, and says nothing.
    folders = {path.parent for path in SOURCES}
    assert [name_of(folder) for folder in folders if not (folder / "__init__.py").exists()] == []
