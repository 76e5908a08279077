"""Settings of networks that are trained from scratch: the table ``architecture`` of a run."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from temper.models.classical.vocabulary import Units

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
        "learning_rate": 1e-3,
        "batch_size": 64,
        "epochs": 4.0,
        "weight_decay": 0.0,
        "warmup_ratio": 0.0,
    }

    embedding: int = Field(300, ge=1)
    dropout: float | None = Field(None, ge=0, lt=1)
    vocabulary: int = Field(20_000, ge=4)
    min_frequency: int = Field(2, ge=1)
    units: Units = "auto"
    vectors: str | None = Field(None, min_length=1)

    def network(self) -> dict[str, Any]:
        """Return what the network's config is told beside the words, the rates and the labels."""
        own = set(type(self).model_fields) - set(ArchitectureSettings.model_fields)
        return {name: getattr(self, name) for name in own}


class TextCNNSettings(ArchitectureSettings):
    """Settings of ``text_cnn``.

    Args:
        windows: Widths of the convolutions in words (Kim 2014: 3, 4, 5).
        filters: Filters of each width, >= 1 (Kim 2014: 100).
    """

    windows: Windows = (3, 4, 5)
    filters: int = Field(100, ge=1)
