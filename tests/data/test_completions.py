"""Prompts and completions: which files have them, and which tokens are targets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.data.collator import Collator
from temper.data.completions import encoded_completions
from temper.data.encode import LazilyEncoded, encode
from temper.data.settings import DataSettings
from temper.data.sources import load_examples
from temper.errors import DataError
from temper.testing.tiny import tiny_tokenizer
from tests.data.test_tags import write

USER, ASSISTANT = {"role": "user", "content": "a film"}, {"role": "assistant", "content": "good"}


@pytest.mark.parametrize(
    ("row", "chat"),
    [
        ({"prompt": "a film", "completion": "good"}, False),
        ({"messages": [USER, ASSISTANT]}, True),
        ({"prompt": [USER], "completion": [ASSISTANT]}, True),
        ({"prompt": [USER], "completion": "good"}, True),
    ],
)
def test_prompts_and_completions_are_recognized(
    tmp_path: Path, row: dict[str, Any], chat: bool
) -> None:
    result = load_examples(str(write(tmp_path / "rows.jsonl", [row, row])))
    assert result.kind == "completions"
    assert result.labels == ["good", "good"]
    assert bool(result.source.get("messages")) is chat
    assert (json.loads(result.text[0]) if chat else result.text[0]) == (
        [USER] if chat else "a film"
    )


@pytest.mark.parametrize(
    "row", [{"prompt": "a film"}, {"prompt": "a film", "completion": ""}, {"messages": [USER]}]
)
def test_prompts_alone_are_read_for_predictions(tmp_path: Path, row: dict[str, Any]) -> None:
    result = load_examples(str(write(tmp_path / "rows.jsonl", [row])), labeled=False)
    assert result.kind == "unlabeled"
    assert "a film" in result.text[0]


@pytest.mark.parametrize(
    "bad",
    [
        {"prompt": "a film", "completion": ""},
        {"prompt": "a film", "completion": None},
        {"prompt": 3, "completion": "good"},
        {"prompt": [USER], "completion": "good"},
    ],
)
def test_bad_rows_raise_an_error_or_are_skipped(tmp_path: Path, bad: dict[str, Any]) -> None:
    rows = [{"prompt": "a film", "completion": "good"}, bad]
    path = write(tmp_path / "rows.jsonl", rows)
    with pytest.raises(DataError, match="rows.jsonl"):
        load_examples(str(path))
    if not isinstance(bad["prompt"], list):
        settings = DataSettings(source=str(path), skip_bad_rows=True)
        assert len(load_examples(str(path), reading=settings.reading)) == 1


def test_a_conversation_must_end_with_an_assistant_message(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"messages": [USER]}])
    with pytest.raises(DataError, match="assistant"):
        load_examples(str(path))


texts = st.text("ab ", min_size=1, max_size=20).filter(str.strip)


@given(texts, texts, st.integers(2, 12))
def test_targets_are_the_completion_and_its_end(prompt: str, completion: str, limit: int) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = tokenizer.sep_token
    ((item, cut),) = encoded_completions(
        [prompt], [completion], tokenizer, chat=False, max_length=limit
    )
    ids, labels = item["input_ids"], item["labels"]
    assert len(ids) == len(labels) <= limit
    targets = [label for label in labels if label >= 0]
    assert ids[-len(targets) :] == targets
    assert labels[0] == -100
    if not cut:
        assert targets[-1] == tokenizer.eos_token_id
    ((whole, _),) = encoded_completions(
        [prompt], [completion], tokenizer, chat=False, max_length=99
    )
    full = [label for label in whole["labels"] if label >= 0]
    assert targets == full[: limit - 1]


TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} . {% endfor %}"
    "{% if add_generation_prompt %}assistant{% endif %}"
)


def test_conversations_are_formatted_by_the_chat_template() -> None:
    tokenizer = tiny_tokenizer()
    rows = ([json.dumps([USER])], ["good"])
    with pytest.raises(DataError, match="chat template"):
        list(encoded_completions(*rows, tokenizer, chat=True, max_length=20))
    tokenizer.chat_template = TEMPLATE
    ((item, _),) = encoded_completions(*rows, tokenizer, chat=True, max_length=20)
    whole = tokenizer("user a film . assistant good . ", add_special_tokens=False)["input_ids"]
    first = tokenizer("user a film . assistant", add_special_tokens=False)["input_ids"]
    assert item["input_ids"] == whole
    assert item["labels"] == [-100] * len(first) + whole[len(first) :]


def test_lazily_encoded_rows_equal_rows_encoded_at_once(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a film", "completion": "good"},
        {"prompt": "the film was", "completion": "very very good"},
    ]
    examples = load_examples(str(write(tmp_path / "rows.jsonl", rows)))
    tokenizer = tiny_tokenizer()
    encoded = encode(examples, tokenizer, max_length=16)
    lazy = LazilyEncoded(examples, tokenizer, max_length=16)
    assert [lazy[index] for index in range(2)] == encoded.items
    batch = Collator(tokenizer)(encoded.items)
    assert batch["labels"].shape == batch["input_ids"].shape
    assert (batch["labels"][~batch["attention_mask"].bool()] == -100).all()
