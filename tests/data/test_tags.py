"""Rows of words with tags: file formats, and the first token of each word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.data.collator import Collator
from temper.data.encode import LazilyEncoded, encode
from temper.data.examples import Examples
from temper.data.in_memory import hold
from temper.data.settings import DataSettings
from temper.data.sources import load_examples, load_splits
from temper.data.tags import words_of
from temper.errors import DataError
from temper.testing.tiny import tiny_tokenizer

ROWS: list[dict[str, Any]] = [
    {"tokens": ["good", "film"], "ner_tags": ["B-X", "O"]},
    {"tokens": ["a", "very", "good", "film"], "ner_tags": ["O", "B-X", "I-X", "O"]},
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_lists_of_words_and_tags_are_recognized(tmp_path: Path) -> None:
    rows = [{"text": "joined", "label": 1, **row} for row in ROWS]
    result = load_examples(str(write(tmp_path / "rows.jsonl", rows)))
    assert result.kind == "tokens"
    assert result.label_names == ("O", "B-X", "I-X")
    assert list(result.text) == ["good film", "a very good film"]
    assert result.labels == [(1, 0), (0, 1, 2, 0)]


def test_names_come_from_a_list_of_classes() -> None:
    features = datasets.Features(
        words=datasets.List(datasets.Value("string")),
        ner_tags=datasets.List(datasets.ClassLabel(names=["O", "B-X", "I-X"])),
    )
    columns = {
        "words": [row["tokens"] for row in ROWS],
        "ner_tags": [[1, 0], [0, 1, 2, 0]],
    }
    result = load_examples(hold(datasets.Dataset.from_dict(columns, features=features)))
    assert result.label_names == ("O", "B-X", "I-X")
    assert result.labels == [(1, 0), (0, 1, 2, 0)]


def test_other_schemes_are_reported(tmp_path: Path) -> None:
    rows = [{"tokens": ["good", "film"], "tags": ["I-X", "O"]}]
    result = load_examples(str(write(tmp_path / "rows.jsonl", rows * 2)))
    assert result.labels == [(1, 0)] * 2
    assert any("IOB1" in notice for notice in result.notices)


def test_words_without_tags_are_read_as_text(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"tokens": ["good", "a b", " "]}])
    result = load_examples(str(path), labeled=False)
    assert list(result.text) == ["good a_b _"]
    assert result.kind == "unlabeled"


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"ner_tags": ["O"]}, "one tag for .* 2 words"),
        ({"ner_tags": ["O", None]}, "a tag for every word"),
        ({"ner_tags": ["O", 3]}, "names of tags"),
        ({"tokens": []}, "list of words"),
        ({"tokens": "good film"}, "list of words"),
        ({"tokens": ["good", 3]}, "list of words"),
    ],
)
def test_bad_rows_raise_an_error_or_are_skipped(
    tmp_path: Path, bad: dict[str, Any], said: str
) -> None:
    path = write(tmp_path / "rows.jsonl", [*ROWS, {**ROWS[0], **bad}])
    with pytest.raises(DataError, match=said) as caught:
        load_examples(str(path))
    assert "3" in str(caught.value)
    settings = DataSettings(source=str(path), skip_bad_rows=True)
    kept = load_examples(str(path), reading=settings.reading)
    assert kept.labels == [(1, 0), (0, 1, 2, 0)]


def test_sets_must_have_the_tags_of_the_training_rows(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", ROWS)
    write(tmp_path / "dev.jsonl", [{"tokens": ["film"], "ner_tags": ["B-Y"]}])
    with pytest.raises(DataError, match="'B-Y'"):
        load_splits(DataSettings(source=str(tmp_path)))
    write(tmp_path / "dev.jsonl", [{"tokens": ["film"], "ner_tags": ["O"]}, ROWS[0]])
    dev = load_splits(DataSettings(source=str(tmp_path))).dev
    assert dev.labels == [(0,), (1, 0)]
    write(tmp_path / "dev.jsonl", [{"tokens": "film", "ner_tags": "O"}] * 2)
    with pytest.raises(DataError, match="tags of words"):
        load_splits(DataSettings(source=str(tmp_path)))


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_first_token_of_a_word_is_labeled(side: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.padding_side = side
    examples = Examples(
        "rows",
        ["good unheard film", "film"],
        labels=[(0, 1, 2), (2,)],
        label_names=("O", "B-X", "I-X"),
        kind="tokens",
    )
    encoded = encode(examples, tokenizer, max_length=16)
    lazy = LazilyEncoded(examples, tokenizer, max_length=16)
    for row in range(2):
        assert lazy[row] == encoded[row]
        by_word = dict(zip(encoded[row]["words"], encoded[row]["labels"], strict=True))
        assert by_word.pop(-1) == -100
        assert by_word == dict(enumerate(examples.labels[row]))
    batch = Collator(tokenizer)([encoded[0], encoded[1]])
    for row in range(2):
        real = batch["labels"][row][batch["attention_mask"][row].bool()]
        assert real.tolist() == encoded[row]["labels"]
        assert (batch["labels"][row][~batch["attention_mask"][row].bool()] == -100).all()


def test_words_behind_the_limit_have_no_label() -> None:
    examples = Examples(
        "rows", ["good film " * 8 + "good"], labels=[tuple(range(17))], kind="tokens",
        label_names=tuple(map(str, range(17))),
    )  # fmt: skip
    (item,) = encode(examples, tiny_tokenizer(), max_length=6).items
    labels = [label for label in item["labels"] if label >= 0]
    assert labels == list(range(len(labels)))
    assert len(labels) == 4


@given(st.text(max_size=60))
def test_running_texts_split_into_words_without_spaces(text: str) -> None:
    spans = words_of(text)
    assert all(end > start and " " not in text[start:end] for start, end in spans)
    assert spans == sorted(spans)
    rest = set(range(len(text))) - {at for start, end in spans for at in range(start, end)}
    assert all(text[at].isspace() for at in rest)
