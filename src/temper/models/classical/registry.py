"""The networks that are trained from scratch: their settings, and each by name.

A network is imported when it is wanted. Its settings are the table ``architecture`` of a run.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from temper.models.classical.classifier import ClassicalClassifier

Units = Literal["auto", "words", "characters"]

PAD, UNKNOWN, SEPARATOR = "[PAD]", "[UNK]", "[SEP]"
SPECIAL = (PAD, UNKNOWN, SEPARATOR)
"""Special tokens by id: padding is 0."""
SENTENCE_ENDS = (*".!?\u2026", *"\u3002\uff01\uff1f\uff0e")
"""Signs that end a sentence, in Latin and in Chinese writing."""
Windows = Annotated[tuple[Annotated[int, Field(ge=1, le=50)], ...], Field(min_length=1)]


class ArchitectureSettings(BaseModel):
    """What all networks that are trained from scratch are told.

    Args:
        embedding: Width of a word's embedding, >= 1.
        dropout: Rate of every dropout layer, in [0, 1); None is 0 under ``vanilla`` and .5 under
            every other method (UEGR, Table IV).
        vocabulary: Most words that are known, special tokens included, >= 4.
        min_frequency: How often a word must come in the training text to be known, >= 1.
        units: What a token is: ``words``, ``characters``, or ``auto``: characters where most
            letters of the training text are Chinese, Japanese or Korean.
        vectors: Text file of pre-trained word vectors (GloVe, word2vec, fastText); None draws all.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # What a run's settings are where nobody says otherwise: rates for Adam from random weights.
    TRAIN: ClassVar[dict[str, Any]] = {
        "learning_rate": 2e-3,
        "batch_size": 32,
        "epochs": 5.0,
        "weight_decay": 0.0,
        "warmup_ratio": 0.0,
    }

    embedding: int = Field(128, ge=1)
    dropout: float | None = Field(None, ge=0, lt=1)
    vocabulary: int = Field(20_000, ge=4)
    min_frequency: int = Field(2, ge=1)
    units: Units = "auto"
    vectors: str | None = Field(None, min_length=1)

    def network(self, vocabulary: Mapping[str, int]) -> dict[str, Any]:
        """Return what the network's config is told beside the words, the rates and the labels.

        Args:
            vocabulary: Token to id.
        """
        raise NotImplementedError


class TextCNNSettings(ArchitectureSettings):
    """Settings of ``text_cnn``.

    Args:
        windows: Widths of the convolutions in words (Kim 2014: 3, 4, 5).
        filters: Filters of each width, >= 1 (Kim 2014: 100).
    """

    windows: Windows = (3, 4, 5)
    filters: int = Field(100, ge=1)

    def network(self, vocabulary: Mapping[str, int]) -> dict[str, Any]:
        """Return the windows and the filters; as `ArchitectureSettings.network`."""
        return {"windows": self.windows, "filters": self.filters}


class BiLSTMSettings(ArchitectureSettings):
    """Settings of ``bilstm``.

    Args:
        hidden: Width of one direction's state, >= 1.
        layers: LSTMs, one upon the other, >= 1.
        pooling: ``max`` over the words, or ``attention``.
    """

    hidden: int = Field(128, ge=1)
    layers: int = Field(1, ge=1)
    pooling: Literal["max", "attention"] = "max"

    def network(self, vocabulary: Mapping[str, int]) -> dict[str, Any]:
        """Return the layers' sizes and the pooling; as `ArchitectureSettings.network`."""
        return {
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "pooling": self.pooling,
        }


class TextHANSettings(ArchitectureSettings):
    """Settings of ``text_han``.

    Args:
        hidden: Width of one direction's state, >= 1 (Yang et al. 2016: 50).
        sentence_length: Most tokens of a sentence, >= 1; longer ones are cut in pieces.
    """

    hidden: int = Field(50, ge=1)
    sentence_length: int = Field(50, ge=1)

    def network(self, vocabulary: Mapping[str, int]) -> dict[str, Any]:
        """Return sizes and the ends of sentences; as `ArchitectureSettings.network`."""
        ends = sorted(
            vocabulary[sign] for sign in (*SENTENCE_ENDS, SEPARATOR) if sign in vocabulary
        )
        return {
            "hidden_size": self.hidden,
            "sentence_ends": ends,
            "sentence_length": self.sentence_length,
        }


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
            "learning_rate": f"{rate:g}",
            "note": f"{self.note}; settings: architecture.KEY",
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
        "recurrent",
        "BiLSTMForSequenceClassification",
        "LSTM in both directions, 128 wide each, max pooling",
        "trained from scratch (Conneau et al. 2017)",
    ),
    "text_han": Architecture(
        TextHANSettings,
        "recurrent",
        "TextHANForSequenceClassification",
        "GRUs and attention over words, then sentences, 50 wide a direction",
        "trained from scratch (Yang et al. 2016)",
    ),
}
"""Name on the command line to network; the name is also the config's ``model_type``."""
