"""The first screen as a block that a notebook shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from temper.display.folders import read
from temper.display.records import RunRecord
from temper.report import build, comparison, first_screen
from temper.report.trained import trained
from tests.report.conftest import Plan, write_study
from tests.report.test_page import Elements, hostile


def block_of(folder: Path, plan: Plan) -> str:
    study = write_study(folder, plan)
    return first_screen(read(study), comparison(study))


def test_the_notebook_block_has_the_header_of_the_page(tmp_path: Path) -> None:
    block = block_of(tmp_path / "study", Plan())
    page = build(tmp_path / "study").read_text(encoding="utf-8")
    header = re.search(r"<header>.*</header>", block, re.S)
    assert header is not None
    assert header[0] in page


def test_the_notebook_block_loads_nothing_and_escapes_text_from_data(tmp_path: Path) -> None:
    shown = Elements(block_of(tmp_path / "study", hostile()))
    tags = {tag for tag, _ in shown.elements}
    assert not tags & {"script", "img", "iframe", "link", "object", "html", "body"}
    names = {name for _, attributes in shown.elements for name in attributes}
    assert not [name for name in names if name.startswith("on") or name in ("src", "href", "id")]
    assert "<script>" in shown.text


def test_the_styles_of_the_block_reach_nothing_outside_it(tmp_path: Path) -> None:
    style = re.search(r"<style>(.*?)</style>", block_of(tmp_path / "study", Plan()), re.S)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]
    plain = re.sub(r"/\*.*?\*/", "", style[1], flags=re.S)
    # Selectors at the top, or directly inside a media query, which nest nothing themselves.
    depth, start, outer = 0, 0, []
    for index, sign in enumerate(plain):
        if sign == "{":
            selector = plain[start:index].strip()
            if depth == 0 or (depth == 1 and outer[-1].startswith("@media")):
                outer.append(selector)
            depth += 1
        depth -= sign == "}"
        if sign in "{};":
            start = index + 1
    selectors = [text for text in outer if not text.startswith("@media")]
    assert selectors
    assert {text.split()[0] for text in selectors} <= {".temper", "div.temper"}


@pytest.mark.parametrize(
    ("metric", "score", "learned"),
    [
        ("entity_f1", 0.0, False),
        ("entity_f1", 0.3, True),
        ("accuracy", 0.52, False),
        ("accuracy", 0.75, True),
        # The loss of a language model has no known value of guessing.
        ("loss", 9.0, True),
    ],
)
def test_a_run_at_chance_level_gets_advice(metric: str, score: float, learned: bool) -> None:
    record = RunRecord.model_validate(
        {
            "status": "finished",
            "key": "0" * 64,
            "model": "m",
            "method": "plain",
            "seed": 0,
            "task": {"kind": "classification", "metric": metric, "labels": ["no", "yes"]},
            "data": {"dev": {"rows": 100}},
            "epochs": {"metric": metric, "kept": {"by": "last", "epoch": 1, "dev": score}},
        }
    )
    assert ("--learning-rate" in trained(record, "run").sentence) is not learned
