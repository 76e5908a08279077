"""Which models are sequence classifiers, as far as their class and configuration tell."""

from __future__ import annotations

import re

from torch import nn
from transformers.models.auto import modeling_auto

from temper.errors import ModelError
from temper.models.blocks import unwrap
from temper.models.probing import innermost

OTHERS = {
    "a token classifier": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "a causal language model": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "a masked language model": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "a sequence-to-sequence model": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "a model for question answering": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    "a model for multiple choice": "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES",
}
"""Heads that no method trains, and where Transformers lists their classes."""


# Learned embeddings of absolute positions; relative and rotary positions have no such table.
_POSITIONS = re.compile(r"(^|\.)(position_embeddings?|embed_positions|wpe)$")


def position_limit(model: nn.Module) -> int | None:
    """Return the most tokens of a row for which a model has positions; None without a limit.

    Args:
        model: Any model, wrapped or not.
    """
    limits = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and _POSITIONS.search(name):
            # RoBERTa counts positions from after its padding token, OPT and BART from an offset.
            padding = module.padding_idx
            first = getattr(module, "offset", 0) if padding is None else padding + 1
            limits.append(module.num_embeddings - int(first))
    return min(limits, default=None)


def check_sequence_classifier(model: nn.Module) -> None:
    """Refuse a model whose head no method trains.

    A module of one's own passes; what its logits look like shows in the first step.

    Args:
        model: Any model, wrapped or not.

    Raises:
        ModelError: If it has another head than one for texts with one label each.
    """
    inner = innermost(unwrap(model))
    problem = getattr(getattr(inner, "config", None), "problem_type", None)
    if problem == "multi_label_classification":
        raise ModelError(
            "The model's config has problem_type='multi_label_classification', and methods train "
            "one class or one number a text. Use Transformers' Trainer for several labels a text, "
            "or set model.config.problem_type to 'single_label_classification' or 'regression'."
        )
    name = type(inner).__name__
    for kind, mapping in OTHERS.items():
        if name in getattr(modeling_auto, mapping, {}).values():
            raise ModelError(
                f"{name} is {kind}, and methods train sequence classifiers and regressions. Load "
                "the checkpoint with AutoModelForSequenceClassification, or use Transformers' "
                "Trainer."
            )
