"""Propose words for a position of a text with a masked language model."""

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
    """A position between two texts for which words are proposed.

    Neither the original ``word`` (in any case; empty for none) nor words of another script are
    proposed.

    Example:
        >>> Blank("a ", " film", word="good").before
        'a '
    """

    before: str
    after: str
    word: str = ""


class MaskedModel(PretrainedReader):
    """A masked language model that proposes words.

    The word is replaced by one mask token, for which the model predicts a distribution over its
    vocabulary. Only whole words are proposed: single tokens that the tokenizer produces again at
    that position. The model is in eval mode meanwhile, and no proposal depends on its batch. Of a
    text with more than ``max_length`` (>= 3) tokens it reads the part around the blank.

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
                "propose any. Give a model whose vocabulary holds words (BERT, RoBERTa)."
            )

    @classmethod
    def check_kind(cls, config: Any, tokenizer: Any) -> None:
        """Raise a `ModelError` if there is no head of a masked language model, or no mask token."""
        kinds = getattr(config, "architectures", None) or ()
        if kinds and not any(kind.endswith(("MaskedLM", "PreTraining")) for kind in kinds):
            raise ModelError(
                f"The model must be a masked language model, got {', '.join(kinds)}. Give a "
                "checkpoint with the head of its pre-training, such as bert-base-uncased."
            )
        if getattr(tokenizer, "mask_token", None) is None:
            raise ModelError(
                f"A masked language model needs a mask token, and {type(tokenizer).__name__} has "
                "none. Give a model such as BERT or RoBERTa."
            )

    @cached_property
    def words(self) -> WholeWords:
        size = getattr(getattr(self.model, "config", None), "vocab_size", None)
        return whole_words(self.tokenizer, size=size)

    def propose(self, blanks: Sequence[Blank], *, count: int) -> list[list[str]]:
        """Propose at most ``count`` (>= 1) words for each blank, the most likely first.

        They are those of the model's vocabulary: an uncased model's words are in lower case.
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
        """Return the ids of a text with the mask token in its blank, and the token's index."""
        before, after = blank.before, blank.after
        while True:
            text = f"{before}{self.tokenizer.mask_token}{after}"
            ids = list(self.tokenizer(text, verbose=False)["input_ids"])
            masks = [at for at, token in enumerate(ids) if token == self.tokenizer.mask_token_id]
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
        # The padding side is the tokenizer's, so the place is counted from the row's first token.
        first = inputs["attention_mask"].argmax(dim=1)
        at = first + torch.tensor(indices, device=first.device)
        logits = self.model(**inputs).logits
        chosen = at_least_single(logits[torch.arange(len(indices)), at])
        if not bool(torch.isfinite(chosen).all()):
            raise ModelError(
                "The masked language model's logits are not finite. Load it in fp32, or give "
                "another."
            )
        return chosen.softmax(dim=-1).cpu()

    def _best(self, blank: Blank, chances: Tensor, count: int) -> list[str]:
        words = self.words.behind(blank.before)
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
