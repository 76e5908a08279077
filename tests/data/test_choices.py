"""Questions with choices: which files have them, which answer is meant, and their tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from temper.data.choices import choices_of
from temper.data.collator import Collator
from temper.data.columns import Columns
from temper.data.encode import LazilyEncoded, encode
from temper.data.settings import DataSettings
from temper.data.sources import load_examples
from temper.data.table import TableOptions
from temper.errors import DataError
from temper.testing.tiny import tiny_tokenizer
from tests.data.test_tags import write

CHOICES = ["word1", "word2 word3", "word4"]
LABELED = {"text": CHOICES, "label": ["1", "2", "3"]}


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({"question": "word5", "choices": CHOICES, "answer": 2}, 2),
        ({"prompt": "word5", "options": CHOICES, "label": "B"}, 1),
        ({"ctx": "word5", "endings": CHOICES, "label": "2"}, 2),
        ({"question": "word5", "choices": CHOICES, "answer": "word2 word3"}, 1),
        ({"question": "word5", "choices": LABELED, "answerKey": "2"}, 1),
        ({"question": "word5", "choices": ["1", "0", "2"], "answer": "0"}, 1),
        ({"Question": "word5", "Choices": CHOICES, "Answer": 0.0}, 0),
    ],
)
def test_choices_are_recognized_by_their_columns(
    tmp_path: Path, row: dict[str, Any], answer: int
) -> None:
    result = load_examples(str(write(tmp_path / "rows.jsonl", [row, row])))
    assert result.kind == "choices"
    assert result.labels == [answer, answer]
    assert result.text[0] == "word5"
    assert result.text_pair is not None
    assert len(choices_of(result.text_pair[0])) == 3


def test_a_named_group_column_does_not_change_what_the_rows_are(tmp_path: Path) -> None:
    rows = [{"question": "word5", "choices": CHOICES, "answer": 2, "topic": each} for each in "ab"]
    path = str(write(tmp_path / "rows.jsonl", rows))
    result = load_examples(path, columns=Columns(group="topic"))
    assert result.kind == "choices"
    assert result.group == ["a", "b"]
    with pytest.raises(DataError, match="subject"):
        load_examples(path, columns=Columns(group="subject"))


@pytest.mark.parametrize("answer", [{}, {"answer": ""}, {"answer": -1}, {"answer": None}])
def test_questions_without_answers_are_read_for_predictions(
    tmp_path: Path, answer: dict[str, Any]
) -> None:
    row = {"question": "word5", "choices": CHOICES, **answer}
    path = str(write(tmp_path / "rows.jsonl", [row]))
    assert load_examples(path, labeled=None).kind == "unlabeled"
    assert load_examples(path, labeled=False).text_pair is not None


@pytest.mark.parametrize(
    "bad",
    [
        {"choices": CHOICES, "answer": 3},
        {"choices": CHOICES, "answer": "D"},
        {"choices": CHOICES, "answer": True},
        {"choices": ["word1", "word1", "word2"], "answer": "word1"},
        {"choices": CHOICES[:2], "answer": 0},
        {"choices": ["word1", 2, "word3"], "answer": 0},
        {"choices": "word1", "answer": 0},
        {"choices": CHOICES, "answer": None},
    ],
)
def test_bad_rows_raise_an_error_or_are_skipped(tmp_path: Path, bad: dict[str, Any]) -> None:
    good = {"question": "word5", "choices": CHOICES, "answer": 0}
    path = write(tmp_path / "rows.jsonl", [good, good, {"question": "word6", **bad}])
    with pytest.raises(DataError, match=r"rows.jsonl, line 3"):
        load_examples(str(path))
    reading = DataSettings(source=str(path), skip_bad_rows=True).reading
    assert len(load_examples(str(path), reading=reading)) == 2


def test_a_column_that_is_named_is_read_as_a_text(tmp_path: Path) -> None:
    from temper.data.columns import Columns

    row = {"question": "word5", "choices": CHOICES, "label": "yes"}
    path = str(write(tmp_path / "rows.jsonl", [row, {**row, "label": "no"}]))
    result = load_examples(path, columns=Columns(text="question", label="label"))
    assert result.kind == "classification"


def test_each_choice_is_a_sequence_with_its_question(tmp_path: Path) -> None:
    rows = [
        {"question": "word5", "choices": CHOICES, "answer": 1},
        {"question": "word6 word7", "choices": CHOICES[::-1], "answer": 0},
    ]
    examples = load_examples(str(write(tmp_path / "rows.jsonl", rows)))
    tokenizer = tiny_tokenizer()
    encoded = encode(examples, tokenizer, max_length=16)
    lazy = LazilyEncoded(examples, tokenizer, max_length=16)
    assert [lazy[index] for index in range(2)] == encoded.items
    batch = Collator(tokenizer)(encoded.items)
    whole = tokenizer(
        [row["question"] for row in rows for _ in row["choices"]],
        [text for row in rows for text in row["choices"]],
        padding=True,
        return_tensors="pt",
    )
    for name in ("input_ids", "attention_mask"):
        assert batch[name].tolist() == whole[name].view(2, 3, -1).tolist()
    assert batch["labels"].tolist() == [1, 0]


def test_questions_of_one_batch_need_equally_many_choices() -> None:
    from temper.data.examples import Examples

    examples = Examples("rows", ["word1", "word2"], ['["a", "b"]', '["a", "b", "c"]'])
    with pytest.raises(DataError, match="2 and 3"):
        encode(examples, tiny_tokenizer(), max_length=16, kind="choices")
    with pytest.raises(DataError, match="JSON"):
        encode(Examples("rows", ["word1"]), tiny_tokenizer(), max_length=16, kind="choices")


QUESTION = {"question": "word5", "context": "word5 word6"}


@pytest.mark.parametrize(
    ("row", "bad", "texts"),
    [
        (
            {"question": "word5", "choices": CHOICES, "answer": 0},
            {"answer": 9},
            ["question", "choices"],
        ),
        (
            {**QUESTION, "answers": {"text": ["word6"], "answer_start": [6]}},
            {"context": ""},
            ["question", "context"],
        ),
        ({"prompt": "word5", "completion": "word6"}, {"completion": 3}, ["prompt"]),
    ],
)
def test_the_other_columns_of_good_rows_are_kept(
    tmp_path: Path, row: dict[str, Any], bad: dict[str, Any], texts: list[str]
) -> None:
    rows = [{**row, "id": 7}, {**row, **bad, "id": 8}, {**row, "id": 9}]
    path = write(tmp_path / "rows.jsonl", rows)
    options = TableOptions(skip_bad_rows=True, others=True)
    examples = load_examples(str(path), reading=options)
    assert examples.others["id"] == [7, 9]
    assert set(examples.others) == {*row, "id"} - {*texts}
