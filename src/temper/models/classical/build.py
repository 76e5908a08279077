"""Build a network and its tokenizer from the training text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from temper.errors import DataError, ModelError, unknown
from temper.models.blocks import head_settings
from temper.models.classical.registry import ARCHITECTURES, SPECIAL, ArchitectureSettings
from temper.models.classical.vectors import read_vectors
from temper.models.classical.vocabulary import make_tokenizer
from temper.seeding import derive_seed, seeded

DROPOUT = 0.5
"""Rate of every dropout layer where nobody says otherwise (Kim 2014; UEGR, Table IV)."""


@dataclass(frozen=True)
class Built:
    """A network that has not been trained.

    Args:
        model: The classifier, in evaluation mode.
        tokenizer: Its tokenizer.
        notices: What a person should know of how they came about.
    """

    model: Any
    tokenizer: Any
    notices: tuple[str, ...] = ()


def build_classifier(
    name: str,
    texts: Sequence[str],
    *,
    labels: Sequence[str] | None,
    settings: ArchitectureSettings | None = None,
    max_length: int = 512,
    seed: int = 0,
) -> Built:
    """Build a network for a task, its vocabulary made of the training text.

    Args:
        name: A key of `ARCHITECTURES`.
        texts: The training texts, those of pairs one by one.
        labels: Names of the classes; None is a regression.
        settings: Its settings; None takes the defaults.
        max_length: Longest row in tokens.
        seed: Seed of the weights: equal seeds and texts give equal networks.

    Returns:
        Model, tokenizer and notices.

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
    config = architecture.classifier.config_class(
        vocab_size=len(tokenizer),
        embedding_size=settings.embedding,
        dropout=DROPOUT if settings.dropout is None else settings.dropout,
        pad_token_id=tokenizer.pad_token_id,
        **settings.network(tokenizer.get_vocab()),
        **head_settings(labels),
    )
    with seeded(derive_seed(seed, "head")):
        model = architecture.classifier(config).eval()
    notices: tuple[str, ...] = ()
    if settings.vectors is not None:
        notices = (_take_vectors(model, tokenizer, Path(settings.vectors), settings.embedding),)
    return Built(model, tokenizer, notices)


def _take_vectors(model: Any, tokenizer: Any, path: Path, size: int) -> str:
    """Put pre-trained vectors in the place of drawn ones, and say how many there were."""
    words = {word: place for word, place in tokenizer.get_vocab().items() if word not in SPECIAL}
    found = read_vectors(path.expanduser(), words, size=size)
    if not found:
        near = ", ".join(repr(word) for word in list(words)[:3])
        raise DataError(
            f"{path} has a vector for none of the {len(words)} words of the training texts (such "
            f"as {near}). Give vectors of their language and case, or leave them out."
        )
    table = model.get_input_embeddings().weight
    with torch.no_grad():
        for place, vector in found.items():
            table[place] = torch.tensor(vector, dtype=table.dtype)
    return f"{len(found)} of {len(words)} words have a vector in {path}; the others are drawn."
