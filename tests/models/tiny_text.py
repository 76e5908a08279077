"""Tiny tokenizers of both styles, and random models of their vocabulary."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from tokenizers.normalizers import BertNormalizer
from transformers import (
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
)

from temper.testing.tiny import MARKS, marked

_OPINIONS = ("good", "great", "fine", "bad", "poor", "dull")
_SUBJECTS = ("film", "movie", "plot", "cast", "story")
WORDS = (*_OPINIONS, *_SUBJECTS, "was", "felt", "seemed", "truly", "rather", "the", "and", "but")
PIECES = ("##s", "##ly", "##ness", "un", "a", "##n", ".", ",", "(", ")", "42")


def wordpiece(*, length: int = 40) -> PreTrainedTokenizerFast:
    """Return an uncased tokenizer of BERT's kind."""
    vocabulary = {piece: number for number, piece in enumerate([*MARKS, *WORDS, *PIECES])}
    core = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    core.normalizer = BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    return marked(core, length=length)


def byte_level(*, side: str = "right", length: int = 40) -> PreTrainedTokenizerFast:
    """Return a cased tokenizer of RoBERTa's kind; some words are one piece behind a space only."""
    vocabulary: dict[str, int] = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4}
    merges: list[tuple[str, str]] = []
    for letter in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[letter] = len(vocabulary)

    def add(word: str) -> None:
        for end in range(1, len(word)):
            pair = (word[:end], word[end])
            if "".join(pair) not in vocabulary:
                vocabulary["".join(pair)] = len(vocabulary)
                merges.append(pair)

    for word in WORDS:
        add(f"Ġ{word}")
    for word in ("Good", "Great", "good", "film", "movie"):
        add(word)
    core = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), add_prefix_space=False
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        cls_token="<s>",
        sep_token="</s>",
        mask_token=AddedToken("<mask>", lstrip=True, special=True),
        model_max_length=length,
        padding_side=side,
    )


def loud(kind: Any, tokenizer: Any, *, seed: int = 0, **settings: Any) -> Any:
    """Return a random model whose weights are so large that what it says depends on the words."""
    torch.manual_seed(seed)
    config = kind.config_class(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=64,
        **settings,
    )
    model = kind(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.3)
    return model.eval()


masked_bert = partial(loud, BertForMaskedLM)
masked_roberta = partial(loud, RobertaForMaskedLM, pad_token_id=1)
encoder_bert = partial(loud, BertModel)
classifier_bert = partial(loud, BertForSequenceClassification)
classifier_roberta = partial(loud, RobertaForSequenceClassification, pad_token_id=1)
# It reads rows padded on the left, as it should.
classifier_llama = partial(loud, LlamaForSequenceClassification, pad_token_id=1)
