"""The networks that are trained from scratch, by name; each is imported when it is wanted."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from temper.models.classical.settings import (
    ArchitectureSettings,
    BiLSTMSettings,
    TextCNNSettings,
    TextHANSettings,
)

if TYPE_CHECKING:
    from temper.models.classical.classifier import ClassicalClassifier


@dataclass(frozen=True)
class Architecture:
    """A network that is trained from scratch.

    Args:
        settings: Class of its settings.
        module: Module of the network, beside this one.
        name: Name of the network's class, which names its config.
        summary: What it is, for tables.
        note: Its source.
    """

    settings: type[ArchitectureSettings]
    module: str
    name: str
    summary: str
    note: str

    @property
    def classifier(self) -> type[ClassicalClassifier]:
        """The network's class."""
        module = importlib.import_module(f"temper.models.classical.{self.module}")
        found: type[ClassicalClassifier] = getattr(module, self.name)
        return found

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
        "text_cnn",
        "TextCNNForSequenceClassification",
        "convolutions of 3, 4 and 5 words, 100 filters each",
        "trained from scratch (Kim 2014)",
    ),
    "bilstm": Architecture(
        BiLSTMSettings,
        "bilstm",
        "BiLSTMForSequenceClassification",
        "LSTM in both directions, 128 wide each, max pooling",
        "trained from scratch (Conneau et al. 2017)",
    ),
    "text_han": Architecture(
        TextHANSettings,
        "text_han",
        "TextHANForSequenceClassification",
        "GRUs and attention over words, then sentences, 50 wide a direction",
        "trained from scratch (Yang et al. 2016)",
    ),
}
"""Name on the command line to network; the name is also the config's ``model_type``."""
