"""Propose words to replace a word of a text, by a masked language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM

from temper.errors import ModelError
from temper.functional.precision import at_least_single
from temper.models.hf import PretrainedReader
from temper.models.modes import in_mode
from temper.models.pieces import WholeWords, script_of, whole_words


@dataclass(frozen=True)
class Blank:
    """A position between two texts, for which words are to be proposed.

    Proposals exclude ``word``, the original (in any case; may be empty), and words in another
    script.

    Example:
        >>> Blank("a ", " film", word="good").before
        'a '
    """

    before: str
    after: str
    word: str = ""


class MaskedModel(PretrainedReader):
    """A masked language model that proposes words.

    One mask token replaces the word, and the model predicts a distribution over its vocabulary.
    Only tokens that are whole words at that position are proposed. The model runs in eval mode, and
    proposals do not depend on the batch. If a text has more than ``max_length`` (>= 3) tokens, the
    model reads only the part around the blank.

    References:
        Li et al. 2020, BERT-ATTACK, take candidates from the same distribution. Differs: they do
        not mask the word, and join tokens to words.
    """

    kind = AutoModelForMaskedLM

    def __init__(
        self, model: nn.Module, tokenizer: Any, *, max_length: int = 128, batch_size: int = 32
    ) -> None:
        super().__init__(model, tokenizer, max_length=max_length, batch_size=batch_size)
        if not self.words.inside:
            raise ModelError(
                "No piece of the masked language model's vocabulary is a whole word, so it cannot "
                "propose any. Pass a model whose vocabulary has words (BERT, RoBERTa)."
            )

    @classmethod
    def check_kind(cls, config: Any, tokenizer: Any) -> None:
        """Raise a `ModelError` unless a model has a masked language model head and a mask token."""
        kinds = getattr(config, "architectures", None) or ()
        if kinds and not any(kind.endswith(("MaskedLM", "PreTraining")) for kind in kinds):
            raise ModelError(
                f"The model must be a masked language model, got {', '.join(kinds)}. Pass a "
                "checkpoint with the head of its pre-training, such as bert-base-uncased."
            )
        if getattr(tokenizer, "mask_token", None) is None:
            raise ModelError(
                f"A masked language model needs a mask token, and {type(tokenizer).__name__} has "
                "none. Pass a model such as BERT or RoBERTa."
            )

    @cached_property
    def words(self) -> WholeWords:
        size = getattr(getattr(self.model, "config", None), "vocab_size", None)
        return whole_words(self.tokenizer, size=size)

    def propose(self, blanks: Sequence[Blank], *, count: int) -> list[list[str]]:
        """Propose at most ``count`` (>= 1) words for each blank, the most likely first.

        The words are those of the vocabulary; an uncased model proposes lower case.
        """
        distinct = list(dict.fromkeys(blanks))
        read = [self._read(blank) for blank in distinct]
        result: dict[Blank, list[str]] = {}
        with in_mode(self.model, training=False), torch.no_grad():
            for indices, inputs in self.batches([ids for ids, _ in read]):
                chances = self._chances(inputs, [read[index][1] for index in indices])
                for index, row in zip(indices, chances, strict=True):
                    result[distinct[index]] = self._best(distinct[index], row, count)
        return [result[blank] for blank in blanks]

    def _read(self, blank: Blank) -> tuple[list[int], int]:
        """Return the ids of a text, cut and with the mask token, and the index of that token."""
        before, after = blank.before, blank.after
        while True:
            text = f"{before}{self.tokenizer.mask_token}{after}"
            ids = list(self.tokenizer(text, verbose=False)["input_ids"])
            masks = [
                index for index, token in enumerate(ids) if token == self.tokenizer.mask_token_id
            ]
            # The text itself may contain the mask token.
            position = masks[before.count(self.tokenizer.mask_token)]
            if len(ids) <= self.max_length:
                return ids, position
            if not before and not after:
                raise ModelError(
                    f"`max_length` {self.max_length} leaves no room for a word. Raise it."
                )
            # The longer side is halved until the rest fits.
            if position >= len(ids) - position:
                before = before[(len(before) + 1) // 2 :]
            else:
                after = after[: len(after) // 2]

    def _chances(self, inputs: dict[str, Tensor], indices: list[int]) -> Tensor:
        # Padding may come first, so the index is counted from the row's first token.
        first = inputs["attention_mask"].argmax(dim=1)
        positions = first + torch.tensor(indices, device=first.device)
        logits = self.model(**inputs).logits
        chosen = at_least_single(logits[torch.arange(len(indices)), positions])
        if not bool(torch.isfinite(chosen).all()):
            raise ModelError(
                "The masked language model's logits are not finite. Load it in fp32, or pass "
                "another."
            )
        return chosen.softmax(dim=-1).cpu()

    def _best(self, blank: Blank, chances: Tensor, count: int) -> list[str]:
        words = self.words.after(blank.before)
        ids = torch.tensor(list(words), dtype=torch.int64)
        order = chances[ids].argsort(descending=True, stable=True)
        avoided, script = blank.word.casefold(), script_of(blank.word)
        likely = (words[number] for number in ids[order].tolist())
        fitting = (
            word
            for word in likely
            if word.casefold() != avoided and script in ("", script_of(word))
        )
        return list(islice(fitting, count))
