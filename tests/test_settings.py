"""Settings as nested tables: files and ``KEY=VALUE``, and refusals."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.errors import SettingError
from temper.settings import override, parse_assignment, parse_value, read_toml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", 0.1),
        ("3", 3),
        ("true", True),
        ("1e-5", 1e-5),
        ("[0.1, 0.5]", [0.1, 0.5]),
        ("linear", "linear"),
        ('"3"', "3"),
        ("", ""),
        ("a b", "a b"),
        ("../data/sst2", "../data/sst2"),
        ("2026-01-01", "2026-01-01"),
        ("1\nother = 2", "1\nother = 2"),
    ],
)
def test_a_value_is_read_as_toml_and_a_bare_word_as_text(text: str, value: Any) -> None:
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


@pytest.mark.parametrize("text", ["[1, 2", '"open', "{a = 1", "[1,, 2]"])
def test_a_value_with_an_unclosed_bracket_raises_an_error(text: str) -> None:
    with pytest.raises(SettingError, match="is not valid TOML"):
        parse_value(text)


@pytest.mark.parametrize("text", ["epochs", "=3", "train.=3", ".epochs=3", ""])
def test_an_assignment_needs_a_path_and_an_equals_sign(text: str) -> None:
    with pytest.raises(SettingError, match="KEY=VALUE"):
        parse_assignment(text)


@given(st.text())
def test_any_text_parses_or_raises_a_setting_error(text: str) -> None:
    path: tuple[str, ...] = ("refused",)
    with contextlib.suppress(SettingError):
        path, _ = parse_assignment(text)
    assert all(path)


@given(
    st.one_of(
        st.booleans(),
        st.integers(-(2**62), 2**62),
        st.floats(allow_nan=False),
        st.lists(st.integers(-9, 9)),
    )
)
def test_a_number_or_list_survives_being_written_and_parsed(value: Any) -> None:
    written = str(value).lower() if isinstance(value, bool) else str(value)
    assert parse_value(written) == value


def test_an_override_does_not_change_the_original() -> None:
    before = {"train": {"epochs": 3}}
    after = override(before, [(("train", "epochs"), 1), (("data", "source"), "demo")])
    assert before == {"train": {"epochs": 3}}
    assert after == {"train": {"epochs": 1}, "data": {"source": "demo"}}


def test_two_values_for_one_setting_raise_an_error() -> None:
    with pytest.raises(SettingError, match="`seed` is given twice: 1 and 2"):
        override({}, [(("seed",), 1), (("seed",), 2)])


def test_a_setting_below_a_plain_value_raises_an_error() -> None:
    with pytest.raises(SettingError, match="`seed.low` cannot be set: `seed` is 1"):
        override({"seed": 1}, [(("seed", "low"), 2)])


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"a = [1", "is not valid TOML"), (b"a = '\xff'", "is not UTF-8 text")],
)
def test_a_damaged_settings_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(SettingError, match=message):
        read_toml(path)
