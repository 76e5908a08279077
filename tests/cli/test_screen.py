"""Output on a terminal: control characters are removed, and lines fit."""

from __future__ import annotations

import io
import json
import unicodedata

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from temper.cli.screen import Screen, fail, notice, print_json, print_table, say

HOSTILE = st.text(
    st.characters(categories=["Cc", "Cf", "L", "P"]) | st.sampled_from("\x1b\x9b\x07\r\x08\u202e["),
    max_size=30,
)
ESCAPES = ("\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\x1bc", "a\rb", "\u202eabc\u2066")


def steering(text: str) -> list[str]:
    """Return the controls of a terminal, and the marks that turn the direction."""
    turning = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
    return [
        character
        for character in text
        if (unicodedata.category(character) == "Cc" and character not in "\n\t")
        or unicodedata.bidirectional(character) in turning
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=HOSTILE)
def test_no_control_reaches_the_terminal(capsys: pytest.CaptureFixture[str], text: str) -> None:
    fail(text)
    notice(text)
    say(text)
    print_table([{"label": text}], ["label"], title=text)
    seen = capsys.readouterr()
    assert steering(seen.out + seen.err) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=HOSTILE)
def test_json_escapes_control_characters(capsys: pytest.CaptureFixture[str], text: str) -> None:
    print_json({text: [text]})
    out = capsys.readouterr().out
    assert json.loads(out) == {text: [text]}
    assert steering(out) == []


@pytest.mark.parametrize("text", ESCAPES)
def test_the_rest_of_a_message_is_shown(capsys: pytest.CaptureFixture[str], text: str) -> None:
    fail(f"The label {text} is unknown")
    output = capsys.readouterr().err
    assert output.startswith("Error: The label ")
    assert output.endswith(" is unknown\n")
    assert steering(output) == []


@given(
    words=st.lists(st.text("abcdé-:/.", min_size=1, max_size=30), max_size=20),
    width=st.integers(10, 80),
)
def test_a_terminal_gets_lines_that_fit_and_whole_words(words: list[str], width: int) -> None:
    file = io.StringIO()
    screen = Screen(file=file, force_terminal=True, width=width, color_system=None, highlight=False)
    screen.print(" ".join(words), markup=False)
    lines = file.getvalue().splitlines()
    assert " ".join(lines).split() == words
    assert all(len(line) <= width or " " not in line for line in lines)
