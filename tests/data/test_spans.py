"""Answers in contexts: which files have them, and which tokens they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.data.collator import Collator
from temper.data.encode import LazilyEncoded, encode
from temper.data.examples import Examples
from temper.data.settings import DataSettings
from temper.data.sources import load_examples
from temper.data.spans import answer_span
from temper.errors import DataError
from temper.testing.tiny import WORDS, tiny_tokenizer
from tests.data.test_tags import write

CONTEXT = "word1 word2, word3"
ROW = {"question": "word9", "context": CONTEXT}


@pytest.mark.parametrize(
    "answers",
    [
        {"text": ["word2", "word3"], "answer_start": [6, 13]},
        [{"text": "word2", "answer_start": 6}, {"text": "word3", "answer_start": 13}],
    ],
)
def test_answers_are_recognized_in_both_forms(tmp_path: Path, answers: Any) -> None:
    result = load_examples(str(write(tmp_path / "rows.jsonl", [{**ROW, "answers": answers}])))
    assert result.kind == "spans"
    assert result.labels == [((6, "word2"), (13, "word3"))]
    assert (result.text[0], result.text_pair and result.text_pair[0]) == ("word9", CONTEXT)


def test_parquet_and_questions_alone_are_read(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    answers = {"text": ["word2"], "answer_start": [6]}
    path = tmp_path / "rows.parquet"
    pandas.DataFrame([{**ROW, "answers": answers}]).to_parquet(path)
    assert load_examples(str(path)).labels == [((6, "word2"),)]
    assert load_examples(str(path), labeled=False).labels is None
    assert load_examples(str(write(tmp_path / "new.jsonl", [ROW])), labeled=False).text_pair


@pytest.mark.parametrize(
    "bad",
    [
        {"answers": {"text": [], "answer_start": []}},
        {"answers": {"text": ["word2"], "answer_start": [5]}},
        {"answers": {"text": ["word2"], "answer_start": [-1]}},
        {"answers": {"text": ["word2"], "answer_start": []}},
        {"answers": "word2"},
        {"answers": None},
        {"answers": {"text": ["word2"], "answer_start": [6]}, "context": ""},
    ],
)
def test_bad_rows_raise_an_error_or_are_skipped(tmp_path: Path, bad: dict[str, Any]) -> None:
    good = {**ROW, "answers": {"text": ["word2"], "answer_start": [6]}}
    path = write(tmp_path / "rows.jsonl", [good, {**ROW, **bad}])
    with pytest.raises(DataError, match=r"rows.jsonl, line 2"):
        load_examples(str(path))
    reading = DataSettings(source=str(path), skip_bad_rows=True).reading
    assert len(load_examples(str(path), reading=reading)) == 1


words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=8)


@given(words, words, st.data(), st.sampled_from(["left", "right"]))
def test_positions_are_those_of_the_answer_with_any_padding(
    question: list[str], context: list[str], data: st.DataObject, side: str
) -> None:
    first = data.draw(st.integers(0, len(context) - 1))
    last = data.draw(st.integers(first, len(context) - 1))
    text, answer = "  ".join(context), "  ".join(context[first : last + 1])
    start = len("  ".join([*context[:first], ""])) if first else 0
    examples = Examples(
        "rows", [" ".join(question), "word1"], [text, "word2 " * 20],
        labels=[((start, answer),), ((0, "word2"),)], kind="spans",
    )  # fmt: skip
    tokenizer = tiny_tokenizer()
    tokenizer.padding_side = side
    encoded = encode(examples, tokenizer, max_length=40)
    item, batch = encoded[0], Collator(tokenizer)(encoded.items)
    ids = batch["input_ids"][0, batch["start_positions"][0] : batch["end_positions"][0] + 1]
    assert ids.tolist() == tokenizer.convert_tokens_to_ids(context[first : last + 1])
    span = answer_span(item, item["start_positions"], item["end_positions"])
    assert span == (start, start + len(answer))
    # The context alone may have an answer: neither question, nor special tokens, nor padding.
    allowed = batch["input_ids"][0][batch["context_mask"][0]].tolist()
    assert allowed == tokenizer.convert_tokens_to_ids(context)


def test_an_answer_that_is_cut_off_has_no_position() -> None:
    label = ((len("word1 word2 "), "word3 word4"),)
    rows = Examples("rows", ["word9"], ["word1 word2 word3 word4"], labels=[label], kind="spans")
    tokenizer = tiny_tokenizer()
    for limit, known in ((8, True), (7, False), (6, False)):
        item = LazilyEncoded(rows, tokenizer, max_length=limit)[0]
        assert (item["start_positions"] >= 0) is (item["end_positions"] >= 0) is known
        assert item == encode(rows, tokenizer, max_length=limit)[0]


def test_a_question_needs_a_context() -> None:
    with pytest.raises(DataError, match="context"):
        encode(Examples("rows", ["word1"]), tiny_tokenizer(), max_length=8, kind="spans")
