"""The page on reproduction holds what the kept numbers say."""

from __future__ import annotations

from pathlib import Path

from reproduction.document import rewrite

ROOT = Path(__file__).resolve().parents[2]


def test_the_generated_parts_are_as_the_command_writes_them() -> None:
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert text == rewrite(text, ROOT), "run: temper reproduce --write docs/reproduction.md"
