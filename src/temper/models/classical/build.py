"""Build a classical network and its tokenizer from the training texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from temper.errors import DataError, ModelError, unknown
from temper.models.blocks import head_settings
from temper.models.classical.registry import (
    ARCHITECTURES,
    DROPOUT,
    PAD,
    SEPARATOR,
    SPECIAL,
    UNKNOWN,
    ArchitectureSettings,
    TextHANSettings,
    Units,
)
from temper.models.classical.vectors import read_vectors
from temper.seeding import derive_seed, seeded

_LETTER = re.compile(r"[^\W\d_]")
# Kana, Han and Hangul: scripts without spaces between words, or with one letter per syllable.
_IDEOGRAPH = re.compile("[\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]")

# Scripts without spaces between words: a letter and its marks are a token, like a Han character.
_UNSPACED = (
    r"[\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Hiragana}\p{Katakana}\u30fc\uff70&&\p{L}]\p{M}*"
)


def make_tokenizer(
    texts: Sequence[str],
    *,
    units: Units = "auto",
    size: int = 20_000,
    min_frequency: int = 2,
    max_length: int = 512,
) -> Any:
    """Build a fast tokenizer with the most frequent words of the training texts.

    Words are lower-cased runs of characters between spaces and punctuation. Each punctuation mark
    is a word, and so is each letter of a script without spaces (Chinese characters, Kana, Thai,
    Lao, Khmer, Myanmar). Each text of a row ends with ``[SEP]``. The order of the texts does not
    matter: words are ranked by frequency, then alphabetically.

    Args:
        texts: The training texts only.
        units: ``words``, ``characters``, or ``auto``: characters if most letters are Chinese,
            Japanese or Korean.
        size: Maximum number of tokens, including special ones, >= 4.
        min_frequency: Minimum frequency of a word, >= 1; rarer words become ``[UNK]``.
        max_length: Maximum number of tokens of a row.

    Example:
        >>> tokenizer = make_tokenizer(["A film! A good film."], min_frequency=1)
        >>> tokenizer.convert_ids_to_tokens(tokenizer("a Good bore")["input_ids"])
        ['a', 'good', '[UNK]', '[SEP]']
    """
    if units == "auto":
        units = "characters" if mostly_ideographs(texts) else "words"
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=True
    )
    splits: list[Any] = [
        pre_tokenizers.BertPreTokenizer(),
        pre_tokenizers.Split(Regex(_UNSPACED), behavior="isolated"),
    ]
    if units == "characters":
        splits.append(pre_tokenizers.Split(Regex("."), behavior="isolated"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    trainer = trainers.WordLevelTrainer(
        vocab_size=size,
        min_frequency=min_frequency,
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    tokenizer.train_from_iterator(iter(texts), trainer)
    if tokenizer.get_vocab_size() <= len(SPECIAL):
        raise DataError(
            f"No word occurs {min_frequency} times or more in the {len(texts)} training texts, so "
            "there is no vocabulary. Lower architecture.min_frequency, or pass more text."
        )
    end = tokenizer.token_to_id(SEPARATOR)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {SEPARATOR}",
        pair=f"$A {SEPARATOR} $B {SEPARATOR}",
        special_tokens=[(SEPARATOR, end)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        sep_token=SEPARATOR,
        model_max_length=max_length,
        padding_side="right",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )


def mostly_ideographs(texts: Iterable[str]) -> bool:
    """Return whether most letters are Chinese, Japanese or Korean.

    Example:
        >>> mostly_ideographs(["电影好"]), mostly_ideographs(["a 电 film"])
        (True, False)
    """
    letters = ideographs = 0
    for text in texts:
        letters += len(_LETTER.findall(text))
        ideographs += len(_IDEOGRAPH.findall(text))
    return 2 * ideographs > letters


SENTENCE_ENDS = (*".!?\u2026", *"\u3002\uff01\uff1f\uff0e", SEPARATOR)
"""Tokens that end a sentence, in Latin and Chinese script."""


class Built(NamedTuple):
    """An untrained network in evaluation mode, its tokenizer, and how it was built."""

    model: Any
    tokenizer: Any
    notices: tuple[str, ...] = ()


def build_classifier(
    name: str,
    texts: Sequence[str],
    *,
    labels: Sequence[str] | None,
    kind: str = "classification",
    settings: ArchitectureSettings | None = None,
    max_length: int = 512,
    seed: int = 0,
) -> Built:
    """Build an untrained network for a task, with a vocabulary from the training texts.

    Args:
        name: A key of `ARCHITECTURES`.
        texts: The training texts; both texts of a pair are entries.
        labels: Names of the classes; None for a regression.
        kind: Name of the head: ``classification`` or ``multi_label``.
        settings: Settings of the network; None uses the defaults.
        max_length: Maximum number of tokens per row.
        seed: Seed of the weights; equal seeds and texts give equal networks.

    Example:
        >>> built = build_classifier("text_cnn", ["good", "good film", "film"], labels=["-", "+"])
        >>> built.model.config.vocab_size
        5
    """
    if name not in ARCHITECTURES:
        raise ModelError(unknown("network to be trained from scratch", name, ARCHITECTURES))
    settings = settings or ARCHITECTURES[name]()
    tokenizer = make_tokenizer(
        texts,
        units=settings.units,
        size=settings.vocabulary,
        min_frequency=settings.min_frequency,
        max_length=max_length,
    )
    options = settings.network()
    if settings.dropout is None:
        options["dropout"] = DROPOUT
    if isinstance(settings, TextHANSettings):
        known = tokenizer.get_vocab()
        options["sentence_ends"] = sorted(known[sign] for sign in SENTENCE_ENDS if sign in known)
    classifier = ARCHITECTURES[name].classifier()
    config = classifier.config_class(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        **options,
        **head_settings(labels, kind=kind),
    )
    with seeded(derive_seed(seed, "head")):
        model = classifier(config).eval()
    notices: tuple[str, ...] = ()
    if settings.vectors is not None:
        notices = (_copy_vectors(model, tokenizer, Path(settings.vectors)),)
    return Built(model, tokenizer, notices)


def _copy_vectors(model: Any, tokenizer: Any, path: Path) -> str:
    """Copy pre-trained word vectors into the embeddings; return a message with their number."""
    words = {word: index for word, index in tokenizer.get_vocab().items() if word not in SPECIAL}
    table = model.get_input_embeddings().weight
    result = read_vectors(path.expanduser(), words, size=table.shape[1])
    if not result:
        near = ", ".join(repr(word) for word in list(words)[:3])
        raise DataError(
            f"{path} has a vector for none of the {len(words)} words of the training texts (such "
            f"as {near}). Pass vectors of their language and case, or leave them out."
        )
    with torch.no_grad():
        table[list(result)] = torch.tensor(list(result.values()), dtype=table.dtype)
    return f"{len(result)} of {len(words)} words have a vector in {path}; the others are random."
