"""The output of commands in the docs equals that of the commands."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from reproduction import document
from reproduction.specification import read_specification, specification_names
from temper.cli.app import app
from temper.errors import DataError

BLOCK = "Before.\n\n<!-- temper reproduce {} -->\nold\n<!-- /temper -->\n\nAfter.\n"


def filled(text: str) -> str:
    return document.filled(text, partial(app, standalone_mode=False))


# Those of one table; the others read many studies.
QUICK = re.compile(r"(uegr-(table|figure|parts)|trust|roast)")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=() if QUICK.match(page.name) else pytest.mark.slow)
        for page in document.documents()
    ],
    ids=lambda page: page.name,
)
def test_the_documents_contain_the_output_of_their_commands(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == filled(text), "run: temper reproduce --write"


def test_every_table_with_saved_scores_is_shown() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in document.documents())
    names = [read_specification(name) for name in specification_names()]
    for each in names:
        if (document.ROOT / each.folder).is_dir():
            assert f"<!-- temper reproduce {each.name} --from {each.folder} --markdown -->" in text


def test_every_number_of_the_summary_is_in_the_printed_output() -> None:
    """A difference with its interval is that of the study's page, or of the claims."""
    docs = document.ROOT / "docs"
    claims = (docs / "reproduction.md").read_text(encoding="utf-8")
    summary = (docs / "results.md").read_text(encoding="utf-8")
    for row in summary.splitlines():
        page = re.search(r"\((results/.*\.md)\)", row)
        if page:
            text = (claims + (docs / page[1]).read_text(encoding="utf-8")).replace("\\", "")
            for figure in re.findall(r"[\u2212+]\d+\.\d+ \[[^\]]+\]", row):
                assert figure in text, f"{page[1]}: {figure}"
    assert {page.name for page in document.documents()} <= {
        "reproduction.md", *re.findall(r"\(results/(.*\.md)\)", summary)
    }  # fmt: skip


def test_only_the_generated_part_is_replaced() -> None:
    made = filled(BLOCK.format("--check-arithmetic"))
    assert made.startswith("Before.\n\n<!-- temper reproduce --check-arithmetic -->\n")
    assert "printed numbers; " in made
    assert "old" not in made
    assert made.endswith("<!-- /temper -->\n\nAfter.\n")
    assert filled(made) == made


def test_a_failing_command_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match="`temper reproduce nope` failed"):
        filled(BLOCK.format("nope"))
    assert "Unknown reproduction" in capsys.readouterr().err
