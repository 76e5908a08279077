"""Make the network of a run: load a pre-trained one, or build one from the training text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from temper.data.examples import Examples
from temper.models.classical.build import build_classifier
from temper.models.hf import load_classifier
from temper.training.config import RunConfig
from temper.training.scratch import settings_class

USUAL_RATE = 1e-4
"""Below this an adapter hardly learns: LoRA's paper has 2e-4 to 5e-4 on GLUE (its table 9)."""


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
            config.model,
            labels=labels,
            regression=labels is None,
            device="cpu",
            seed=config.seed,
            lora=None if config.train.lora is None else config.train.lora.adapter(),
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


def network_notices(config: RunConfig, model: Any, tokenizer: Any) -> list[str]:
    """Say what a network from scratch or an adapter is made of; nothing of others.

    Args:
        config: The checked settings.
        model: The network.
        tokenizer: Its tokenizer.
    """
    if config.train.lora is not None:
        return _adapter_notices(config, model)
    if config.architecture is None:
        return []
    weights = sum(weight.numel() for weight in model.parameters())
    return [
        f"{config.model} is trained from scratch: {len(tokenizer):,} words of the training text, "
        f"{weights / 1e6:.2f} M parameters, dropout {config.architecture['dropout']:g}, "
        f"learning rate {config.train.learning_rate:g}, batches of {config.train.batch_size}."
    ]


def parameter_counts(model: Any) -> dict[str, int]:
    """Return how many parameters a model has, and how many of them are trained."""
    sizes = [(weight.numel(), weight.requires_grad) for weight in model.parameters()]
    return {"all": sum(size for size, _ in sizes), "trained": sum(n for n, own in sizes if own)}


def _adapter_notices(config: RunConfig, model: Any) -> list[str]:
    assert config.train.lora is not None
    counts, rate = parameter_counts(model), config.train.learning_rate
    said = [
        f"LoRA of rank {config.train.lora.rank}: {counts['trained']:,} of {counts['all']:,} "
        "parameters are trained, the classification head among them."
    ]
    if rate < USUAL_RATE:
        said.append(
            f"The learning rate is {rate:g}; adapters usually take {USUAL_RATE:g} and more. Set "
            "train.learning_rate."
        )
    return said
