"""Which head a model has, by its class and configuration."""

from __future__ import annotations

import re

from torch import nn
from transformers.models.auto import modeling_auto

from temper.errors import ModelError
from temper.heads import Choices, Completions, MultiLabel, Seq2Seq, Spans, Tokens
from temper.models.blocks import unwrap
from temper.models.probing import innermost

CLASSES = {
    Tokens.name: "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    Completions.name: "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    Seq2Seq.name: "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    Spans.name: "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    Choices.name: "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES",
}
"""Where Transformers lists the classes of models with a head other than a sequence classifier's."""
_MASKED = "MODEL_FOR_MASKED_LM_MAPPING_NAMES"

# Learned embeddings of absolute positions; relative and rotary positions have no such table.
_POSITIONS = re.compile(r"(^|\.)(position_embeddings?|embed_positions|wpe)$")


def position_limit(model: nn.Module) -> int | None:
    """Return the maximum number of tokens for which a model has positions; None without a limit."""
    limits = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and _POSITIONS.search(name):
            # RoBERTa counts positions from after its padding token, OPT and BART from an offset.
            padding = module.padding_idx
            first = getattr(module, "offset", 0) if padding is None else padding + 1
            limits.append(module.num_embeddings - int(first))
    return min(limits, default=None)


def classes_of(head: str) -> frozenset[str]:
    """Return the names of Transformers' classes with a head of `CLASSES`."""
    return frozenset(map(str, getattr(modeling_auto, CLASSES[head], {}).values()))


def head_name(model: nn.Module) -> str | None:
    """Return the name of a model's head, a key of `temper.heads.HEADS`.

    It is None for a sequence classifier and for modules of other libraries, whose labels decide
    between classes and numbers.

    Raises:
        ModelError: If it is a masked language model, which no method trains.
    """
    inner = innermost(unwrap(model))
    name = type(inner).__name__
    for head in CLASSES:
        if name in classes_of(head):
            return head
    if name in getattr(modeling_auto, _MASKED, {}).values():
        raise ModelError(
            f"{name} is a masked language model, which no method trains. Load the checkpoint with "
            "the class of the task, such as AutoModelForSequenceClassification."
        )
    problem = getattr(getattr(inner, "config", None), "problem_type", None)
    return MultiLabel.name if problem == "multi_label_classification" else None
