"""The networks that are trained from scratch, by name, and their registration with Transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from temper.models.classical.bilstm import BiLSTMForSequenceClassification
from temper.models.classical.classifier import ClassicalClassifier
from temper.models.classical.settings import (
    ArchitectureSettings,
    BiLSTMSettings,
    TextCNNSettings,
    TextHANSettings,
)
from temper.models.classical.text_cnn import TextCNNForSequenceClassification
from temper.models.classical.text_han import TextHANForSequenceClassification


@dataclass(frozen=True)
class Architecture:
    """A network that is trained from scratch.

    Args:
        settings: Class of its settings.
        classifier: The network; it names its config.
        summary: What it is, for tables.
        note: Its source.
    """

    settings: type[ArchitectureSettings]
    classifier: type[ClassicalClassifier]
    summary: str
    note: str

    def listing(self) -> dict[str, str]:
        """Return a row of the table of models: what stands behind a name."""
        settings = self.settings()
        rate = settings.TRAIN["learning_rate"]
        return {
            "source": "built from the training text",
            "architecture": f"{self.summary}, embeddings {settings.embedding} wide",
            "parameters": f"{settings.embedding} a word and more",
            "note": f"{self.note}; learning rate {rate:g}; settings: architecture.KEY",
        }


ARCHITECTURES: Mapping[str, Architecture] = {
    "text_cnn": Architecture(
        TextCNNSettings,
        TextCNNForSequenceClassification,
        "convolutions of 3, 4 and 5 words, 100 filters each",
        "trained from scratch (Kim 2014)",
    ),
    "bilstm": Architecture(
        BiLSTMSettings,
        BiLSTMForSequenceClassification,
        "LSTM in both directions, 128 wide each, max pooling",
        "trained from scratch (Conneau et al. 2017)",
    ),
    "text_han": Architecture(
        TextHANSettings,
        TextHANForSequenceClassification,
        "GRUs and attention over words, then sentences, 50 wide a direction",
        "trained from scratch (Yang et al. 2016)",
    ),
}
"""Name on the command line to network; the name is also the config's ``model_type``."""


def register_with_transformers() -> None:
    """Let the auto classes of Transformers know the networks; may be called again."""
    for name, each in ARCHITECTURES.items():
        config = each.classifier.config_class
        AutoConfig.register(name, config, exist_ok=True)
        AutoModel.register(config, each.classifier.body_class, exist_ok=True)
        AutoModelForSequenceClassification.register(config, each.classifier, exist_ok=True)
