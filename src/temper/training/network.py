"""Make the network of a run: load a pre-trained one, or build one from the training text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from temper.data.examples import Examples
from temper.models.classical.build import build_classifier
from temper.models.hf import load_classifier
from temper.training.config import RunConfig
from temper.training.scratch import settings_class


def make_network(
    config: RunConfig, rows: Examples, *, labels: Sequence[str] | None
) -> tuple[Any, Any, tuple[str, ...]]:
    """Load a run's model, or build it from the training text where it is trained from scratch.

    Args:
        config: The checked settings.
        rows: The training rows.
        labels: Names of the classes; None is a regression.

    Returns:
        (model, tokenizer, notices), the head or the whole network drawn from the seed.

    Raises:
        ModelError: Nothing whole can be loaded, or its head does not fit.
        DataError: The texts give no vocabulary, or the word vectors cannot be read.
    """
    if config.architecture is None:
        model, tokenizer = load_classifier(
            config.model, labels=labels, regression=labels is None, device="cpu", seed=config.seed
        )
        return model, tokenizer, ()
    built = build_classifier(
        config.model,
        [*rows.text, *(rows.text_pair or ())],
        labels=labels,
        settings=settings_class(config.model).model_validate(config.architecture),
        max_length=config.data.max_length,
        seed=config.seed,
    )
    return built.model, built.tokenizer, built.notices


def said_of(config: RunConfig, model: Any, tokenizer: Any) -> list[str]:
    """Say what a network from scratch is made of and how it is trained; nothing of others.

    Args:
        config: The checked settings.
        model: The network.
        tokenizer: Its tokenizer.
    """
    if config.architecture is None:
        return []
    weights = sum(weight.numel() for weight in model.parameters())
    return [
        f"{config.model} is trained from scratch: {len(tokenizer):,} words of the training text, "
        f"{weights / 1e6:.2f} M parameters, dropout {config.architecture['dropout']:g}, "
        f"learning rate {config.train.learning_rate:g}, batches of {config.train.batch_size}."
    ]
