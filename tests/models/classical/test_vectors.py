"""Word vectors in the usual text files, and errors that name the malformed line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from temper.errors import DataError
from temper.models.classical.build import build_classifier
from temper.models.classical.registry import TextCNNSettings
from temper.models.classical.vectors import content_hash, read_vectors
from tests.messages import assert_messages

TEXTS = ["good film", "good bad film", "bad film good"]


def written(folder: Path, text: str) -> Path:
    path = folder / "vectors.txt"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("header", ["", "3 2\n"])
def test_the_vectors_of_known_words_are_read(tmp_path: Path, header: str) -> None:
    path = written(tmp_path, header + "good 1 -2.5\nother 9 9\nbad 3e-1 4 \ngood 7 7\n")
    assert read_vectors(path, {"good": 3, "bad": 5, "film": 4}, size=2) == {
        3: [1.0, -2.5],
        5: [0.3, 4.0],
    }


def test_a_word_may_contain_spaces_and_unusual_line_breaks(tmp_path: Path) -> None:
    path = written(tmp_path, ". . . 1 2\n\x85 3 4\ngood 5 6\n")
    assert read_vectors(path, {"good": 3}, size=2) == {3: [5.0, 6.0]}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("good 1 2\nbad 1\n", "Line 2 .* a word and 2 numbers .* has 1 numbers"),
        ("good 1 2 3\n", "Line 1 .* has more numbers"),
        ("3 5\ngood 1 2 3 4 5\n", "Line 1 .* announces 5 numbers a word"),
        ("good 1 x\n", "Line 1 .* 'good' is not a finite number"),
        ("good 1 nan\n", "Line 1 .* 'good' is not a finite number"),
        ("\n", "Line 1 .* has 0 numbers"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(DataError, match=fault):
        read_vectors(written(tmp_path, text), {"good": 3}, size=2)


def test_a_missing_file_and_a_binary_one_raise_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_vectors(tmp_path / "none.txt", {}, size=2)
    with pytest.raises(DataError, match="cannot be read: No such file"):
        content_hash(tmp_path / "none.txt")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not UTF-8 text"):
        read_vectors(tmp_path / "binary", {}, size=2)


def test_a_network_starts_from_word_vectors_and_reports_their_number(tmp_path: Path) -> None:
    path = written(tmp_path, "good 1 2\nawful 3 4\n")
    settings = TextCNNSettings(embedding=2, vectors=str(path))
    built = build_classifier("text_cnn", TEXTS, labels=["-", "+"], settings=settings)
    drawn = build_classifier(
        "text_cnn", TEXTS, labels=["-", "+"], settings=TextCNNSettings(embedding=2)
    )
    table, before = (each.model.get_input_embeddings().weight for each in (built, drawn))
    index = built.tokenizer.get_vocab()["good"]
    assert table[index].tolist() == [1.0, 2.0]
    others = [other for other in range(len(table)) if other != index]
    assert torch.equal(table[others], before[others])
    assert_messages(built.notices, f"^1 of 3 words have a vector in {re.escape(str(path))}")


def test_a_file_without_a_vector_for_any_word_raises_an_error(tmp_path: Path) -> None:
    settings = TextCNNSettings(embedding=2, vectors=str(written(tmp_path, "awful 3 4\n")))
    with pytest.raises(DataError, match="vector for none .* 3 words"):
        build_classifier("text_cnn", TEXTS, labels=["-", "+"], settings=settings)


def test_a_hash_follows_the_content(tmp_path: Path) -> None:
    first = content_hash(written(tmp_path, "good 1 2\n"))
    assert content_hash(written(tmp_path, "good 1 2\n")) == first
    assert content_hash(written(tmp_path, "good 1 22\n")) != first
