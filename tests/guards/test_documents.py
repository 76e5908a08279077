"""Code in the docs: Python runs, command lines parse, links lead somewhere."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from dev import tables
from reproduction.command import parser as reproduction_parser
from temper import methods
from temper.cli.app import app
from temper.errors import DataError
from temper.evaluation import perspectives
from temper.forward import Plan
from temper.methods import registry
from temper.types import Step

ROOT = Path(__file__).resolve().parents[2]
ROOT_DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
DOCUMENTS = [*ROOT_DOCUMENTS, *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = typer.main.get_command(app).commands
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
WITH_PYTHON = [path for path in DOCUMENTS if "```python\n" in path.read_text(encoding="utf-8")]


def blocks(path: Path, language: str) -> list[str]:
    """Return the fenced blocks of a document in one language."""
    result = FENCE.findall(path.read_text(encoding="utf-8"))
    return [body for name, body in result if name == language]


def command_lines(path: Path) -> Iterator[str]:
    """Yield the shell lines of a document, continued lines joined."""
    for block in blocks(path, "bash"):
        yield from lines_of(block)


def lines_of(block: str) -> Iterator[str]:
    """Yield the lines of a block of shell, continued ones joined."""
    for line in block.replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line.strip()


def name_of(path: Path) -> str:
    """Return a path relative to the repository, as the test's id."""
    return str(path.relative_to(ROOT))


@cache
def check(line: str) -> tuple[str, dict[str, Any]]:
    """Parse a ``temper ...`` line as the command line would, without running it.

    Returns:
        The command and what it is given.
    """
    words = shlex.split(line.split(" | ")[0].split(" < ")[0], comments=True)[1:]
    if words[0] == "reproduce":
        return words[0], vars(reproduction_parser().parse_args(words[1:]))
    assert words[0] in COMMANDS, f"no command {words[0]!r}: {line}"
    return words[0], COMMANDS[words[0]].make_context(words[0], words[1:]).params


def studies_taken_for_models(lines: Iterable[str]) -> set[str]:
    """Return the folders of studies that some other command is given as a model."""
    studies: set[str] = set()
    models: set[str] = set()
    for command, given in map(check, lines):
        if command not in ("compare", "reproduce"):
            models |= {str(name) for name in (given.get("model"), *(given.get("runs") or ()))}
        elif given["out"] is not None:
            studies.add(str(given["out"]))
    return studies & models


@pytest.mark.parametrize("path", WITH_PYTHON, ids=name_of)
def test_every_python_block_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    methods.names()
    before = registry.registered()
    try:
        for number, block in enumerate(blocks(path, "python"), start=1):
            code = compile(block, f"{name_of(path)}, block {number}", "exec", dont_inherit=True)
            exec(code, names)
    finally:
        registry.forget_since(before)


def test_every_command_line_parses() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in (line for path in DOCUMENTS for line in command_lines(path)):
        words = shlex.split(line, comments=True)
        if words[0] == "temper":
            check(line)
        elif words[0] == "make":
            named = {word for word in words[1:] if "=" not in word}
            assert named <= targets, line


def test_documented_commands_never_use_a_study_as_a_model() -> None:
    for path in DOCUMENTS:
        lines = [line for line in command_lines(path) if line.startswith("temper ")]
        assert studies_taken_for_models(lines) == set(), name_of(path)


def test_a_study_used_as_a_model_is_detected() -> None:
    made = ["temper compare --task rte --model m --out a", "temper train --task rte --out b"]
    for wrong in ("evaluate a --out c", "train --model a --out c"):
        assert studies_taken_for_models([*made, f"temper {wrong}"]) == {"a"}
    assert studies_taken_for_models([*made, "temper evaluate b --out c"]) == set()


def test_every_option_in_the_text_is_one_of_its_command() -> None:
    options = {
        name: {"--help", *(option for parameter in command.params for option in parameter.opts)}
        for name, command in COMMANDS.items()
    }
    options["reproduce"] |= reproduction_parser()._option_string_actions.keys()
    # Options of every command, or of none.
    options |= {"COMMAND": {"--help"}, "--help": {"--help"}}
    options["--install-completion"] = {"--install-completion"}
    faults = []
    for path in DOCUMENTS:
        text = FENCE.sub("", path.read_text(encoding="utf-8"))
        for words in map(str.split, re.findall(r"`temper ([^`]+)`", text)):
            given = {word.partition("=")[0] for word in words if word.startswith("--")}
            if words[0] not in options or given - options[words[0]]:
                faults.append(f"{name_of(path)}: temper {' '.join(words)}")
    assert faults == []


def test_a_wrong_command_line_is_noticed() -> None:
    # Typer carries its own copy of Click, whose usage errors are the base of this one.
    usage_error = typer.BadParameter.__base__
    with pytest.raises(usage_error, match="--no-such-flag"):
        check("temper train --no-such-flag 1")


def test_every_relative_link_leads_to_a_file() -> None:
    links = [(path, link) for path in DOCUMENTS for link in LINK.findall(path.read_text("utf-8"))]
    assert [(path, link) for path, link in links if not (path.parent / link).exists()] == []


def test_tests_named_in_the_security_page_exist() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:tests|dev)/[^`]*)`", text)
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_every_method_has_a_card_and_every_card_a_method() -> None:
    cards = {path.stem for path in (ROOT / "docs" / "methods").glob("*.md")} - {"README"}
    assert cards == set(methods.names())


def test_tables_are_as_the_code_describes_methods_perspectives_and_the_trainer() -> None:
    stale = [path.name for path in tables.documents() if tables.rewrite(path) != path.read_text()]
    assert not stale, "run: python -m dev.tables"


def test_the_formats_name_every_score_of_every_perspective() -> None:
    text = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    scores = {name for each in perspectives.perspectives().values() for name in each.score_names}
    assert [name for name in sorted(scores) if f"`{name}`" not in text] == []


def test_a_regenerated_card_keeps_its_published_values() -> None:
    lines = tables.table_of_settings(
        "uegr",
        "| `mask.alpha` | 1 | 2 | 0.6 to 0.95 | 4 | 5 |\n| `train.epochs` | 1 | 2 | 10 | 4 | 5 |\n",
    ).splitlines()
    rows = {cells[1].strip(): [cell.strip() for cell in cells] for cells in map(_cells, lines)}
    assert rows["`mask.alpha`"][2:5] == ["0.6", "≥ 0, ≤ 1", "0.6 to 0.95"]
    assert rows["`adaptive.low`"][2] == "0.05; 0.3 from scratch"
    # Settings of every training are listed if the paper has a value.
    assert rows["`train.epochs`"][4] == "10"
    assert "`train.learning_rate`" not in rows


def test_a_summary_links_the_results_that_have_scores_of_the_method() -> None:
    assert tables.measured("soup") == ["effect-cheap", "effect-confirm-2"]
    box = tables.summary("soup")
    assert re.search(r"\| Cost of a step \| 3F, for `members` times .* \(`plain`: 3F; .*\) \|", box)
    assert "[effect-confirm-2](../results/effect-confirm-2.md)" in box
    # A composition is evidence for each of its parts.
    parts = {name for name in methods.names() if "effect-cheap" in tables.measured(name)}
    assert {"plain", "ema", "layer_decay", "uegr"} <= parts


def _cells(line: str) -> list[str]:
    return line.split("|")


@pytest.mark.parametrize("text", ["no markers", "B\nA\n", "A\nA\nB\n"])
def test_a_document_without_its_markers_raises_an_error(text: str) -> None:
    with pytest.raises(DataError):
        tables.between(text, "A", "B", lambda old: old)


def test_the_map_of_the_architecture_places_every_method_where_it_is() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    shown: dict[str, str] = {}
    for row in re.findall(r"^\| ([a-z ]+) \| (`.*) \|$", text, re.MULTILINE):
        shown.update(dict.fromkeys(re.findall(r"`(\w+)`", row[1]), row[0]))
    result = {}
    for name in methods.names():
        method = methods.build(name)
        changes = {
            "the losses": method.plan(Step()) != Plan(),
            "the update rule": bool(method.rule.rules),
        }
        named = [change for change, there in changes.items() if there]
        result[name] = (named or ["nothing"])[0] if len(named) < 2 else "both"
    assert shown == result


def test_no_document_installs_temper_from_a_package_index() -> None:
    texts = [*DOCUMENTS, *(ROOT / "src").rglob("*.py"), *(ROOT / "examples").glob("*.ipynb")]
    named = re.compile(r"pip install[^`\n]*temper-lm")
    assert [path for path in texts if named.search(path.read_text(encoding="utf-8"))] == []
    assert named.search("pip install 'temper-lm[tune]'")
