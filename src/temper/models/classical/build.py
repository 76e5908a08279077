"""Build a network and its tokenizer from the training text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from temper.errors import DataError, ModelError, unknown
from temper.models.blocks import head_settings
from temper.models.classical.registry import (
    ARCHITECTURES,
    DROPOUT,
    SEPARATOR,
    SPECIAL,
    ArchitectureSettings,
    TextHANSettings,
)
from temper.models.classical.vectors import read_vectors
from temper.models.classical.vocabulary import make_tokenizer
from temper.seeding import derive_seed, seeded

SENTENCE_ENDS = (*".!?\u2026", *"\u3002\uff01\uff1f\uff0e", SEPARATOR)
"""Tokens that end a sentence, in Latin and in Chinese writing."""


class Built(NamedTuple):
    """A network that has not been trained.

    Args:
        model: The classifier, in evaluation mode.
        tokenizer: Its tokenizer.
        notices: Messages about how they were built.
    """

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
    """Build a network for a task, with the vocabulary of the training text.

    Args:
        name: A key of `ARCHITECTURES`.
        texts: The training texts, those of pairs one by one.
        labels: Names of the classes; None is a regression.
        kind: Name of the head: ``classification`` or ``multi_label``.
        settings: Its settings; None: the defaults.
        max_length: Maximum number of tokens per row.
        seed: Seed of the weights: equal seeds and texts give equal networks.

    Raises:
        ModelError: There is no such network.
        DataError: The texts give no vocabulary, or the word vectors cannot be read.

    Example:
        >>> built = build_classifier("text_cnn", ["good", "good film", "film"], labels=["-", "+"])
        >>> built.model.config.vocab_size
        5
    """
    if name not in ARCHITECTURES:
        raise ModelError(unknown("network to be trained from scratch", name, ARCHITECTURES))
    architecture = ARCHITECTURES[name]
    settings = settings or architecture.settings()
    tokenizer = make_tokenizer(
        texts,
        units=settings.units,
        size=settings.vocabulary,
        min_frequency=settings.min_frequency,
        max_length=max_length,
    )
    own = settings.network()
    if settings.dropout is None:
        own["dropout"] = DROPOUT
    if isinstance(settings, TextHANSettings):
        known = tokenizer.get_vocab()
        own["sentence_ends"] = sorted(known[sign] for sign in SENTENCE_ENDS if sign in known)
    config = architecture.classifier.config_class(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        **own,
        **head_settings(labels, kind=kind),
    )
    with seeded(derive_seed(seed, "head")):
        model = architecture.classifier(config).eval()
    notices: tuple[str, ...] = ()
    if settings.vectors is not None:
        notices = (_copy_vectors(model, tokenizer, Path(settings.vectors)),)
    return Built(model, tokenizer, notices)


def _copy_vectors(model: Any, tokenizer: Any, path: Path) -> str:
    """Replace random embeddings by pre-trained ones, and return how many there are."""
    words = {word: index for word, index in tokenizer.get_vocab().items() if word not in SPECIAL}
    table = model.get_input_embeddings().weight
    found = read_vectors(path.expanduser(), words, size=table.shape[1])
    if not found:
        near = ", ".join(repr(word) for word in list(words)[:3])
        raise DataError(
            f"{path} has a vector for none of the {len(words)} words of the training texts (such "
            f"as {near}). Give vectors of their language and case, or leave them out."
        )
    with torch.no_grad():
        table[list(found)] = torch.tensor(list(found.values()), dtype=table.dtype)
    return f"{len(found)} of {len(words)} words have a vector in {path}; the others are random."
