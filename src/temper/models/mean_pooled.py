"""A linear classifier on the mean-pooled embeddings of an encoder.

Sentence encoders are trained with mean pooling, so such a classifier needs only few rows. It is an
ordinary Transformers model: it can be fine-tuned, calibrated, served and exported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from temper.errors import ModelError
from temper.models.blocks import head_settings
from temper.models.standalone.mean_pooled import (
    MeanPooledConfig,
    MeanPooledForSequenceClassification,
)
from temper.models.windows import set_windows


def mean_pooled(
    classifier: Any, labels: Sequence[str] | None
) -> MeanPooledForSequenceClassification:
    """Return a mean-pooling classifier that shares the encoder of a sequence classifier."""
    config = classifier.config
    if isinstance(classifier, MeanPooledForSequenceClassification):
        settings = config.encoder
    else:
        settings = config.to_dict()
    if config.is_encoder_decoder or not hasattr(config, "hidden_size"):
        raise ModelError(
            f"{config.model_type} is not an encoder, so it has no embeddings of texts to classify. "
            "Pass an encoder."
        )
    set_windows(classifier, None)
    pooled = MeanPooledConfig(
        encoder={"model_type": config.model_type, **settings},
        pad_token_id=config.pad_token_id,
        **head_settings(labels),
    )
    with torch.device(classifier.device):
        model = MeanPooledForSequenceClassification(pooled, classifier.base_model)
    model.eval()
    return model
