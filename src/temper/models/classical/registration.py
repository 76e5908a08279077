"""Importing this module lets the auto classes of Transformers know the networks."""

from __future__ import annotations

from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from temper.models.classical.registry import ARCHITECTURES


def register_with_transformers() -> None:
    """Let the auto classes of Transformers know the networks; may be called again."""
    for name, each in ARCHITECTURES.items():
        classifier = each.classifier
        config = classifier.config_class
        AutoConfig.register(name, config, exist_ok=True)
        AutoModel.register(config, classifier.body_class, exist_ok=True)
        AutoModelForSequenceClassification.register(config, classifier, exist_ok=True)


register_with_transformers()
