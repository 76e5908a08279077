"""The classical networks by name, and their settings; does not import torch.

The settings are the table ``architecture`` of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from temper.models.classical.networks import ClassicalClassifier

DROPOUT = 0.5
"""Default dropout rate, except with the method ``plain`` (Kim 2014; UEGR, Table IV)."""
Units = Literal["auto", "words", "characters"]
Windows = Annotated[tuple[Annotated[int, Field(ge=1, le=50)], ...], Field(min_length=1)]

PAD, UNKNOWN, SEPARATOR = "[PAD]", "[UNK]", "[SEP]"
SPECIAL = (PAD, UNKNOWN, SEPARATOR)
"""The special tokens in the order of their ids: padding is 0."""


class ArchitectureSettings(BaseModel):
    """Settings of all classical networks, and facts about each.

    The alias of a setting is its name in the config of the network.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # Name of the class in `temper.models.classical.networks`.
    NETWORK: ClassVar[str]
    SUMMARY: ClassVar[str]
    SOURCE: ClassVar[str]
    # Default training settings, for Adam from random weights.
    TRAIN: ClassVar[dict[str, Any]] = {
        "learning_rate": 2e-3,
        "batch_size": 32,
        "epochs": 5.0,
        "weight_decay": 0.0,
        "warmup_ratio": 0.0,
    }

    embedding: int = Field(
        128, ge=1, serialization_alias="embedding_size", description="Size of a word embedding."
    )
    dropout: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="Rate of every dropout layer. Default: 0 with `plain`, 0.5 with every other "
        "method (UEGR, Table IV).",
    )
    vocabulary: int = Field(
        20_000, ge=4, description="Maximum number of tokens, including special tokens."
    )
    min_frequency: int = Field(
        2,
        ge=1,
        description="Minimum number of occurrences of a word in the training text; rarer words "
        "become unknown tokens.",
    )
    units: Units = Field(
        default="auto",
        description="Tokens are `words` or `characters`; `auto` uses characters if most letters "
        "of the training text are Chinese, Japanese or Korean.",
    )
    vectors: str | None = Field(
        None,
        min_length=1,
        description="Text file of pre-trained word vectors (GloVe, word2vec, fastText). Default: "
        "random embeddings.",
    )

    @classmethod
    def classifier(cls) -> type[ClassicalClassifier]:
        # Imported on first use, because torch takes seconds.
        from temper.models.classical import networks

        result: type[ClassicalClassifier] = getattr(networks, cls.NETWORK)
        return result

    @classmethod
    def listing(cls) -> dict[str, str]:
        """Return the network's row for ``temper list models``."""
        width = cls().embedding
        return {
            "source": "built from the training text",
            "architecture": f"{cls.SUMMARY}, embeddings {width} wide",
            "parameters": f"at least {width} per word",
            "learning_rate": f"{cls.TRAIN['learning_rate']:g}",
            "note": f"trained from scratch ({cls.SOURCE}); settings: architecture.KEY",
        }

    def network(self) -> dict[str, Any]:
        """Return the settings that belong to the network's config, under their names there."""
        return self.model_dump(
            by_alias=True, exclude={"vocabulary", "min_frequency", "units", "vectors"}
        )


class TextCNNSettings(ArchitectureSettings):
    """Settings of ``text_cnn``."""

    NETWORK = "TextCNNForSequenceClassification"
    SUMMARY = "convolutions of 3, 4 and 5 words, 100 filters each"
    SOURCE = "Kim 2014"

    windows: Windows = Field(
        default=(3, 4, 5), description="Widths of the convolutions in words (Kim 2014: 3, 4, 5)."
    )
    filters: int = Field(100, ge=1, description="Filters of each width (Kim 2014: 100).")


class BiLSTMSettings(ArchitectureSettings):
    """Settings of ``bilstm``."""

    NETWORK = "BiLSTMForSequenceClassification"
    SUMMARY = "LSTM in both directions, 128 wide each, max pooling"
    SOURCE = "Conneau et al. 2017"

    hidden: int = Field(
        128, ge=1, serialization_alias="hidden_size", description="State size of one direction."
    )
    layers: int = Field(
        1, ge=1, serialization_alias="num_hidden_layers", description="Stacked LSTM layers."
    )
    pooling: Literal["max", "attention"] = Field(
        default="max", description="`max` over the words, or `attention`."
    )


class TextHANSettings(ArchitectureSettings):
    """Settings of ``text_han``."""

    NETWORK = "TextHANForSequenceClassification"
    SUMMARY = "GRUs and attention over words, then sentences, 50 wide a direction"
    SOURCE = "Yang et al. 2016"

    hidden: int = Field(
        50,
        ge=1,
        serialization_alias="hidden_size",
        description="State size of one direction (Yang et al. 2016: 50).",
    )
    sentence_length: int = Field(
        50, ge=1, description="Maximum number of tokens of a sentence; longer sentences are split."
    )


ARCHITECTURES: Mapping[str, type[ArchitectureSettings]] = {
    "text_cnn": TextCNNSettings,
    "bilstm": BiLSTMSettings,
    "text_han": TextHANSettings,
}
"""Name in ``--model`` -> settings; the name is also the ``model_type`` of the network's config."""
