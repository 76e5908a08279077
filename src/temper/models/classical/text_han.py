"""TextHAN: attention over the words of each sentence, then over the sentences.

Source: Yang et al. 2016, Hierarchical Attention Networks for Document Classification.
Differs: sentences are told by the tokens that end them, so that token ids are all that is needed; a
sentence above a length is cut in pieces; dropout, which the paper has none of, stands on the words,
on their states and on the pooled row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from temper.models.classical.classifier import ClassicalBody, ClassicalClassifier
from temper.models.classical.configuration import TextHANConfig
from temper.models.classical.recurrent import AttentionPooling, BiRecurrence, Sequences


@dataclass(frozen=True)
class Sentences:
    """Where the sentences of a batch lie: N in all, at most W tokens each, at most S a row.

    Args:
        words: From the tokens to the words of each sentence [N, W], and back.
        texts: From the tokens to the sentences of each row [B, S], each read at its last token;
            back to every token of the sentence.
        number: Sentence, among the N, of each token [B, T]; any at padding.
    """

    words: Sequences
    texts: Sequences
    number: Tensor


def find_sentences(mask: Tensor, ends: Tensor, *, longest: int) -> Sentences:
    """Cut the rows of a batch into sentences.

    Args:
        mask: Real tokens [B, T], boolean.
        ends: Tokens that end a sentence [B, T], boolean; a row's last one does anyway, and of
            several side by side the last.
        longest: Most tokens of a sentence, >= 1.
    """
    B, T = mask.shape
    rows = Sequences.of_tokens(mask)
    # Real tokens first, whichever side is padded.
    real, ending = rows.mask, ends.flatten()[rows.take] & rows.mask
    ending = ending & ~F.pad(ending[:, 1:], (0, 1))
    places = torch.arange(T, device=mask.device).expand(B, T)
    starts = real & F.pad(ending[:, :-1], (1, 0), value=True)
    first = torch.where(starts, places, 0).cummax(dim=1).values
    starts = starts | (real & ((places - first) % longest == 0))
    first = torch.where(starts, places, 0).cummax(dim=1).values
    in_row = starts.long().cumsum(dim=1) - 1
    counts = starts.sum(dim=1)
    number = in_row.clamp(min=0) + F.pad(counts.cumsum(0)[:-1], (1, 0)).unsqueeze(1)
    within = places - first
    width, most = int(within[real].max()) + 1, int(counts.max())
    take = mask.new_zeros((int(counts.sum()), width), dtype=torch.int64)
    filled = torch.zeros_like(take, dtype=torch.bool)
    take[number[real], within[real]] = rows.take[real]
    filled[number[real], within[real]] = True
    last = real & F.pad(starts[:, 1:] | ~real[:, 1:], (0, 1), value=True)
    at_ends = mask.new_zeros((B, most), dtype=torch.int64)
    row = torch.arange(B, device=mask.device).unsqueeze(1).expand(B, T)
    at_ends[row[last], in_row[last]] = rows.take[last]
    there = torch.arange(most, device=mask.device) < counts.unsqueeze(1)
    # Back from the order of real tokens first to that of the batch.
    number, within, in_row = (each.flatten()[rows.give] for each in (number, within, in_row))
    give = (number * width + within).where(mask, 0)
    spread = (row * most + in_row).where(mask, 0)
    return Sentences(
        Sequences(take, filled, give), Sequences(at_ends, there, spread), number.where(mask, 0)
    )


class TextHANModel(ClassicalBody):
    """TextHAN without its head; its blocks are the recurrences over words and over sentences.

    Args:
        config: Its config.
    """

    config_class = TextHANConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.width = 2 * config.hidden_size
        self.layers = nn.ModuleList(
            BiRecurrence(size, config.hidden_size, "gru")
            for size in (config.embedding_size, self.width)
        )
        self.between = nn.Dropout(config.dropout)
        self.word_attention = AttentionPooling(self.width)
        self.sentence_attention = AttentionPooling(self.width)
        self.post_init()

    def run(self, hidden: Tensor, mask: Tensor, input_ids: Tensor) -> tuple[list[Tensor], Tensor]:
        """Run words, then sentences, each under its attention; as `ClassicalBody.run`.

        The second state gives every token what its sentence has; the head reads it at each
        sentence's last token.
        """
        marks = torch.tensor(list(self.config.sentence_ends), device=input_ids.device)
        found = find_sentences(
            mask, torch.isin(input_ids, marks), longest=self.config.sentence_length
        )
        words = self.layers[0](hidden, found.words, mask)
        states = self.between(words).flatten(0, 1)[found.words.take]
        sentences = self.word_attention(states, found.words.mask)
        texts = self.layers[1](sentences[found.number], found.texts, mask)
        pooled = self.sentence_attention(texts.flatten(0, 1)[found.texts.take], found.texts.mask)
        return [words, texts], pooled


class TextHANForSequenceClassification(ClassicalClassifier):
    """TextHAN with its head."""

    config_class = TextHANConfig
    body_class = TextHANModel
