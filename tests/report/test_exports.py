"""Exports: escaped Markdown, a table of scores, and figures as files."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.display.folders import read
from temper.display.wording import escaped
from temper.errors import CheckpointError
from temper.report import build
from temper.report.figures import figures
from temper.report.markdown import document
from temper.report.page import export_figures
from temper.report.table import compare
from tests.report.conftest import Plan

MakeStudy = Callable[[Plan], Path]


def markdown(folder: Path) -> str:
    source = read(folder)
    return document(source, compare(source))


def test_markdown_and_scores_are_written_next_to_the_page(evaluation: Path) -> None:
    before = {path.name for path in evaluation.iterdir()}
    build(evaluation)
    added = {path.name for path in evaluation.iterdir()} - before
    assert added == {"report.html", "report.md", "scores.csv"}
    with (evaluation / "scores.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    first = rows[0]
    assert (first["perspective"], first["name"], first["n"]) == ("task", "accuracy", "500")
    assert float(first["low"]) == pytest.approx(float(first["value"]) - 0.02)


def test_the_markdown_has_headline_scores_notices_runs_and_settings(study: Path) -> None:
    text = markdown(study)
    headings = re.findall(r"^## (.*)$", text, re.M)
    assert headings == [
        "Scores",
        "Notices",
        "Runs",
        "Cost of a step",
        "Settings",
        "Versions",
        "Data",
    ]
    assert "Not confirmed: `uegr`" in text.replace("\\", "")
    line = next(line for line in text.splitlines() if line.startswith("| Accuracy, dev"))
    assert "82.0 ± 2.0" in line
    assert "+3.0 [−2.3, +8.3]" in line
    calibrated = next(line for line in text.splitlines() if line.startswith("| ECE (10 bins), dev"))
    assert "−5.0 [−7.3, −2.7] ▲" in calibrated
    assert "3 seeds, 500 examples" in line
    assert "12 train rows are" in text
    assert "| method.epsilon | 0.0 | 0.025 |" in text
    header = next(line for line in text.splitlines() if line.startswith("| run | method | seed |"))
    run = text.splitlines()[text.splitlines().index(header) + 2]
    cells = dict(zip(header.split(" | "), run.split(" | "), strict=True))
    record = read(study).runs[0].record
    assert record is not None
    assert (cells["method"], cells["key |"]) == ("plain", f"{escaped(record.key)} |")


def test_every_table_of_the_markdown_is_whole(make_study: MakeStudy) -> None:
    plan = Plan(columns=["plain", "a|b<script>"], notices=["a | b\n# not a heading <img>"])
    text = markdown(make_study(plan))
    assert "<script>" not in text
    assert "<img>" not in text
    assert "\n# not" not in text
    blocks = re.findall(r"(?:^\|.*\|$\n?)+", text, re.M)
    assert len(blocks) > 6
    for block in blocks:
        bars = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(bars) == 1


@given(st.text())
def test_escaped_text_holds_no_markup_of_its_own(text: str) -> None:
    result = escaped(text)
    assert not re.search(r"[<>\n\r]", result)
    assert not re.search(r"(?<!\\)(?:\\\\)*[|`*_\[\]]", result)


def test_a_page_named_as_markdown_raises_an_error(study: Path) -> None:
    with pytest.raises(CheckpointError, match=r"the ending of Markdown"):
        build(study, study / "report.md")


def test_figures_replace_those_of_an_earlier_report_and_nothing_else(study: Path) -> None:
    folder = study / "figures"
    folder.mkdir()
    (folder / "01-old.svg").write_text("old")
    (folder / "mine.txt").write_text("kept")
    source = read(study)
    written = export_figures(source, compare(source))
    assert len(written) == len(figures(source, compare(source)))
    assert {path.name for path in folder.iterdir()} == {*(p.name for p in written), "mine.txt"}
    for path in written:
        assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_an_unwritable_figures_folder_raises_an_error(study: Path) -> None:
    (study / "figures").write_text("a file where the folder should be")
    source = read(study)
    with pytest.raises(CheckpointError, match=r"figures"):
        export_figures(source, compare(source))


def test_a_report_imports_neither_transformers_nor_peft(study: Path) -> None:
    code = (
        "import sys; from temper.report import build, comparison; "
        f"build({str(study)!r}); comparison({str(study)!r}); "
        "from temper.evaluation.perspectives import names; names(); print(*sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"transformers", "peft"} & set(result.stdout.split())
