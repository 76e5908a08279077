"""Exports: Markdown that keeps text text, a table of scores, figures as files."""

from __future__ import annotations

import csv
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.display.folders import read
from temper.display.wording import escaped
from temper.errors import CheckpointError, SettingError
from temper.report import build
from temper.report.exports import _render, _titled, browser, choose_formats, export_figures
from temper.report.figures import figures
from temper.report.markdown import document
from temper.report.table import compare
from tests.report.conftest import Plan

MakeStudy = Callable[[Plan], Path]


def markdown(folder: Path) -> str:
    source = read(folder)
    return document(source, compare(source))


def test_a_page_has_its_markdown_and_scores_beside_it(evaluation: Path) -> None:
    before = {path.name for path in evaluation.iterdir()}
    build(evaluation)
    added = {path.name for path in evaluation.iterdir()} - before
    assert added == {"report.html", "report.md", "scores.csv"}
    with (evaluation / "scores.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    first = rows[0]
    assert (first["perspective"], first["name"], first["n"]) == ("task", "accuracy", "500")
    assert float(first["low"]) == pytest.approx(float(first["value"]) - 0.02)


def test_the_markdown_holds_answer_scores_notices_runs_and_settings(study: Path) -> None:
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
    assert "it is 45 % better calibrated" in text
    line = next(line for line in text.splitlines() if line.startswith("| Accuracy, dev"))
    assert "82.00 ± 2.00" in line
    assert "+3.00 [−2.32, +8.32]" in line
    calibrated = next(line for line in text.splitlines() if line.startswith("| ECE (10 bins), dev"))
    assert "−5.00 [−7.27, −2.73] ▲" in calibrated
    assert "3 seeds, 500 examples" in line
    assert "12 train rows are also in dev" in text
    assert "| method.epsilon | 0.0 | 0.025 |" in text


def test_every_table_of_the_markdown_is_whole(make_study: MakeStudy) -> None:
    plan = Plan(columns=["vanilla", "a|b<script>"], notices=["a | b\n# not a heading <img>"])
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
    found = escaped(text)
    assert not re.search(r"[<>\n\r]", found)
    assert not re.search(r"(?<!\\)(?:\\\\)*[|`*_\[\]]", found)


def test_an_unknown_format_is_an_error() -> None:
    with pytest.raises(SettingError, match=r"(?s)figure format 'pgn'.*png"):
        choose_formats(["pgn"])
    with pytest.raises(SettingError, match=r"got none"):
        choose_formats([])


def test_a_missing_renderer_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingError, match=r"pip install 'temper-lm\[figures\]'"):
        choose_formats(["svg"])


def test_a_missing_browser_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("BROWSER_PATH", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SettingError, match=r"apt-get install chromium"):
        browser()
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "none"))
    with pytest.raises(SettingError, match=r"BROWSER_PATH must name the program"):
        browser()


def test_a_page_is_not_named_as_markdown(study: Path) -> None:
    with pytest.raises(CheckpointError, match=r"named as Markdown"):
        build(study, study / "report.md")


def test_a_failure_leaves_the_figures_of_before(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = study / "figures" / "01-old.svg"
    old.parent.mkdir()
    old.write_text("old")

    def fail(*_: Any) -> None:
        raise OSError("no room")

    monkeypatch.setattr("temper.report.exports.choose_formats", tuple)
    monkeypatch.setattr("temper.report.exports._render", fail)
    with pytest.raises(CheckpointError, match=r"Cannot write figures to .*no room"):
        export_figures(study, ["svg"])
    assert [path.name for path in old.parent.iterdir()] == ["01-old.svg"]
    assert not [path for path in study.iterdir() if path.name.startswith(".figures")]


def test_new_figures_replace_those_of_an_earlier_report(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = study / "figures"
    folder.mkdir()
    (folder / "01-old.svg").write_text("old")
    (folder / "mine.txt").write_text("kept")

    def draw(drawn: Any, staged: Path, formats: Any) -> None:
        for place, _ in enumerate(drawn, start=1):
            (staged / f"{place:02d}-new.svg").write_text("<svg/>")

    monkeypatch.setattr("temper.report.exports.choose_formats", tuple)
    monkeypatch.setattr("temper.report.exports._render", draw)
    written = export_figures(study, ["svg"])
    assert len(written) == len(figures(read(study), compare(read(study))))
    assert {path.name for path in folder.iterdir()} == {*(p.name for p in written), "mine.txt"}


@pytest.mark.browser
@pytest.mark.slow
def test_figures_are_drawn_in_both_formats(
    evaluation: Path, chromium: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("kaleido")
    monkeypatch.setenv("BROWSER_PATH", chromium)
    source = read(evaluation)
    folder = tmp_path / "figures"
    folder.mkdir()
    _render(figures(source, compare(source))[:1], folder, ("svg", "png"))
    png, svg = sorted(folder.iterdir(), key=os.fspath)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert svg.read_text(encoding="utf-8").startswith("<svg")


def test_a_long_legend_of_a_figure_has_room_of_its_own(make_study: MakeStudy) -> None:
    columns = ["vanilla", *(f"other{number}" for number in range(8))]
    source = read(make_study(Plan(columns=columns, seeds=[0])))
    (curve,) = [one for one in figures(source, compare(source)) if one.title.startswith("PGD")]
    layout = _titled(curve).layout
    # Nine entries are three lines of three; the figure grows by what they take.
    assert layout.height == curve.figure.layout.height + 48 + 3 * 22
    assert layout.margin.b == 56 + 3 * 22
    assert (layout.legend.yref, layout.legend.y) == ("container", 0)


@pytest.mark.parametrize(
    ("act", "absent"),
    [
        ("from temper.report import build; build({study!r})", ("transformers", "peft")),
        ("from temper.report import comparison; comparison({study!r})", ("transformers", "plotly")),
        ("from temper.evaluation.perspectives import names; names()", ("transformers", "plotly")),
    ],
    ids=["page", "comparison", "perspectives"],
)
def test_nothing_is_imported_that_is_not_needed(
    act: str, absent: tuple[str, ...], study: Path
) -> None:
    code = f"import sys; {act.format(study=str(study))}; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(absent) & set(found.stdout.split())
