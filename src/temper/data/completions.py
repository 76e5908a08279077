"""Training rows for language models: prompts with their completions.

Prompt and completion are texts or lists of chat messages. A row may also be one conversation, whose
last message is the completion. A prompt of messages is stored as JSON. The tokenizer's chat
template formats it when it is encoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from temper.data.columns import TEXT_NAMES
from temper.data.examples import Examples
from temper.data.stored import StoredTexts
from temper.data.table import Table, read_rows
from temper.errors import DataError, brief
from temper.types import UNLABELED

MESSAGES = "messages"
PAIRS = (("prompt", "completion"), ("source", "target"), ("input", "target"))
"""Usual names of the prompt and completion columns, in lower case."""


def completion_columns(names: Sequence[str]) -> tuple[str, ...] | None:
    """Return the prompt and completion columns, or the one column of conversations; else None.

    Example:
        >>> completion_columns(["id", "Prompt", "completion"])
        ('Prompt', 'completion')
        >>> completion_columns(["source", "target"])
        ('source', 'target')
        >>> completion_columns(["text", "source", "target"])
    """
    known = {name.casefold(): name for name in names}
    if MESSAGES in known:
        return (known[MESSAGES],)
    for first, second in PAIRS:
        # With a text column, `target` may be a class, and `source` the origin of the text.
        texts = known.keys() & {*TEXT_NAMES} - {first}
        if first in known and second in known and (second == PAIRS[0][1] or not texts):
            return known[first], known[second]
    return None


def completion_rows(
    table: Table, columns: Sequence[str], *, labeled: bool, skip: bool
) -> tuple[Examples, Table]:
    """Read prompts with their completions; prompts alone if not ``labeled``.

    The table is returned without bad rows.
    """
    rows, table = read_rows(table, columns, partial(_row, labeled=labeled), skip=skip)
    kinds = {chat for _, _, chat in rows}
    if len(kinds) > 1:
        raise DataError(
            f"{table.title} has prompts of both kinds, texts and lists of messages. Use one kind."
        )
    examples = Examples(
        table.title,
        text=StoredTexts.of(prompt for prompt, _, _ in rows),
        labels=[completion for _, completion, _ in rows] if labeled else None,
        kind="completions" if labeled else "unlabeled",
        source={
            "columns": {"text": columns[0], "label": columns[-1]},
            **({"messages": True} if kinds == {True} else {}),
        },
    )
    return examples, table


def _row(prompt: object, completion: object = None, *, labeled: bool) -> tuple[str, str, bool]:
    """Return the prompt, the completion, and whether the prompt is a list of messages.

    Without ``completion``, the last message of the prompt is the completion. It is required if
    ``labeled``; otherwise the completion of a text is not read.
    """
    if isinstance(prompt, str):
        if not labeled:
            return prompt, "", False
        if not isinstance(completion, str) or not completion:
            raise ValueError(f"'completion' must be a string, got {brief(completion)}")
        return prompt, completion, False
    messages = _messages(prompt)
    if completion is None and not labeled and messages[-1]["role"] != "assistant":
        return json.dumps(messages, ensure_ascii=False), "", True
    if completion is None:
        *messages, last = messages
    else:
        notes = [{"role": "assistant", "content": completion}]
        (last,) = _messages(notes if isinstance(completion, str) else completion)
    if last["role"] != "assistant" or not last["content"] or not messages:
        raise ValueError("a conversation must have two messages or more, the last by the assistant")
    return json.dumps(messages, ensure_ascii=False), last["content"], True


def _messages(value: object) -> list[dict[str, str]]:
    if isinstance(value, list | tuple) and value and all(isinstance(m, Mapping) for m in value):
        result = [(item.get("role"), item.get("content")) for item in value]
        if all(isinstance(part, str) for item in result for part in item):
            return [{"role": str(role), "content": str(content)} for role, content in result]
    raise ValueError(
        'expected a text or a list of messages such as {"role": "user", "content": "..."}, got '
        f"{brief(value)}"
    )


def encoded_completions(
    prompts: Sequence[str],
    completions: Sequence[str] | None,
    tokenizer: Any,
    *,
    chat: bool,
    max_length: int,
) -> Iterator[tuple[dict[str, list[int]], bool]]:
    """Encode prompts followed by their completions, or prompts alone, for generation.

    A completion ends with the tokenizer's end token. With ``chat``, prompts are JSON lists of
    messages, and a completion ends as the chat template ends it. A row of more than ``max_length``
    (>= 2) tokens loses the beginning of its prompt. If the completion alone is too long, its end is
    cut.

    Yields:
        ``input_ids``, ``attention_mask`` and, with completions, ``labels`` (-100 for the prompt);
            and whether the row was cut.
    """
    if chat and not getattr(tokenizer, "chat_template", None):
        raise DataError(
            "The rows are conversations, but the tokenizer has no chat template. Pass a model that "
            "has one, or rows with a text as `prompt` and as `completion`."
        )
    for index, prompt in enumerate(prompts):
        completion = None if completions is None else completions[index]
        if chat:
            first, target = _of_chat(json.loads(prompt), completion, tokenizer)
        else:
            first, target = _of_text(prompt, completion, tokenizer)
        room = max(max_length - len(target), 1)
        cut = len(first) > room or len(target) >= max_length
        first, target = first[-room:], target[: max_length - 1]
        ids = first + target
        item = {"input_ids": ids, "attention_mask": [1] * len(ids)}
        if completion is not None:
            item["labels"] = [UNLABELED] * len(first) + target
        yield item, cut


def _of_text(prompt: str, completion: str | None, tokenizer: Any) -> tuple[list[int], list[int]]:
    first: list[int] = tokenizer(prompt, verbose=False)["input_ids"]
    if completion is None:
        return first, []
    end = tokenizer.eos_token_id
    whole: list[int] = tokenizer(prompt + completion, verbose=False)["input_ids"]
    if whole[: len(first)] != first:
        # A token spans the boundary, so prompt and completion are encoded separately.
        alone = tokenizer(completion, add_special_tokens=False, verbose=False)["input_ids"]
        whole = [*first, *alone]
    target = whole[len(first) :]
    return first, target if end is None or target[-1:] == [end] else [*target, end]


def _of_chat(
    messages: list[dict[str, str]], completion: str | None, tokenizer: Any
) -> tuple[list[int], list[int]]:
    def ids(turns: list[dict[str, str]], *, asks: bool) -> list[int]:
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=asks)
        result: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return result

    first = ids(messages, asks=True)
    if completion is None:
        return first, []
    whole = ids([*messages, {"role": "assistant", "content": completion}], asks=False)
    if whole[: len(first)] == first:
        return first, whole[len(first) :]
    # The template formats the prompt differently if a completion follows.
    alone = tokenizer(completion, add_special_tokens=False, verbose=False)["input_ids"]
    end = tokenizer.eos_token_id
    return first, alone if end is None else [*alone, end]
