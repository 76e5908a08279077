"""Generate texts with a causal language model or an encoder-decoder model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from temper.data.batches import ordered_batches
from temper.data.collator import Collator
from temper.data.completions import encoded_completions
from temper.data.encode import encode
from temper.data.examples import Examples, Kind
from temper.errors import ModelError
from temper.evaluation.predictor import Gives, Prediction
from temper.heads import HEADS, Seq2Seq, per_row
from temper.models.kinds import head_name
from temper.models.modes import in_mode
from temper.models.probing import innermost
from temper.types import Batch


class TextGenerator:
    """A causal language model that continues prompts, or an encoder-decoder model.

    Args:
        model: The model.
        tokenizer: Its tokenizer, with a padding token.
        max_length: Maximum number of tokens of a prompt. A longer prompt loses its beginning, or
            its end if an encoder reads it.
        batch_size: Prompts per batch, >= 1.
        max_new_tokens: Maximum number of tokens of a completion, >= 1.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        *,
        max_length: int = 128,
        batch_size: int = 32,
        max_new_tokens: int = 256,
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.max_length, self.batch_size = max_length, batch_size
        self.max_new_tokens = max_new_tokens
        self.reads_apart = head_name(model) == Seq2Seq.name

    gives: Gives = "texts"
    label_names: tuple[str, ...] | None = None

    def predict(self, examples: Examples, *, batch_size: int | None = None) -> Prediction:
        """Return the loss of the completions of a set.

        Args:
            examples: Prompts with completions.
            batch_size: Rows of a forward pass, None for the predictor's own.

        Raises:
            ModelError: There are no completions, or a loss is not finite.
        """
        if examples.labels is None:
            raise ModelError(
                f"Set {examples.name!r} has no completions. A language model is evaluated by their "
                "loss. Give completions, or use `temper predict`."
            )
        kind: Kind = "seq2seq" if self.reads_apart else "completions"
        encoded = encode(examples, self.tokenizer, max_length=self.max_length, kind=kind)
        head, collate = HEADS[kind](), Collator(self.tokenizer)
        device = next(self.model.parameters()).device
        targets = np.zeros((len(examples), 2))
        size = self.batch_size if batch_size is None else batch_size
        with torch.no_grad(), in_mode(self.model, training=False):
            for indices in ordered_batches(encoded.lengths, batch_size=size):
                rows = collate([encoded[index] for index in indices])
                batch = Batch.of({name: value.to(device) for name, value in rows.items()})
                further = head.inputs(batch, innermost(self.model))
                taken = inspect.signature(innermost(self.model).forward).parameters
                known = {name: value for name, value in further.items() if name in taken}
                logits = head.logits(self.model(**batch.inputs, **known), batch)
                assert batch.labels is not None
                mask = head.unit_mask(batch, logits)
                targets[indices, 0] = per_row(head.loss(logits, batch.labels), mask).double().cpu()
                targets[indices, 1] = mask.sum(1).cpu()
        return Prediction.of_targets(targets, truncated=encoded.truncated)

    def complete(
        self, examples: Examples, tell: Callable[[int, int], None] | None = None
    ) -> list[str]:
        """Continue prompts by greedy decoding.

        Args:
            examples: The prompts; completions are ignored.
            tell: Called after each batch with the number of finished prompts and of all prompts.

        Returns:
            The completions, in the order of the prompts.

        Raises:
            DataError: The prompts are messages, and the tokenizer has no chat template.
        """
        ids = self._encoded(examples)
        order = sorted(range(len(ids)), key=lambda index: -len(ids[index]))
        device = next(self.model.parameters()).device
        result = [""] * len(ids)
        with torch.no_grad(), in_mode(self.model, training=False):
            for start in range(0, len(order), self.batch_size):
                indices = order[start : start + self.batch_size]
                # A decoder appends tokens to the end of a row, so padding goes to the left.
                batch = self.tokenizer.pad(
                    [{"input_ids": ids[index]} for index in indices],
                    padding_side="right" if self.reads_apart else "left",
                    return_tensors="pt",
                ).to(device)
                made = self.model.generate(  # type: ignore[operator]
                    **batch,
                    max_new_tokens=self.max_new_tokens,
                    do_sample=False,
                    pad_token_id=self.tokenizer.pad_token_id,
                )
                # A decoder's output begins with the prompt; that of an encoder-decoder does not.
                read = 0 if self.reads_apart else batch["input_ids"].shape[1]
                texts = self.tokenizer.batch_decode(made[:, read:], skip_special_tokens=True)
                for index, text in zip(indices, texts, strict=True):
                    result[index] = text
                if tell is not None:
                    tell(start + len(indices), len(order))
        return result

    def _encoded(self, examples: Examples) -> list[list[int]]:
        if self.reads_apart:
            bare = replace(examples, labels=None, label_names=None, kind="unlabeled")
            encoded = encode(bare, self.tokenizer, max_length=self.max_length, kind="seq2seq")
            return [item["input_ids"] for item in encoded.items]
        rows = encoded_completions(
            examples.text,
            None,
            self.tokenizer,
            chat=bool(examples.source.get("messages")),
            max_length=self.max_length,
        )
        return [row for row, _, _ in rows]
