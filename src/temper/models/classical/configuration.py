"""Configs of the classical networks: what a saved one needs to be built again."""

from __future__ import annotations

from transformers import PreTrainedConfig


class ClassicalConfig(PreTrainedConfig):
    """What the configs of all classical networks say.

    Args:
        vocab_size: Words that are known, special tokens among them.
        embedding_size: D, width of a word's embedding.
        dropout: Rate of every dropout layer, in [0, 1).
        initializer_range: Words are drawn from U(-range, range) (Kim 2014: .25).
        pad_token_id: Id of the padding token, whose embedding is 0.
    """

    model_type = "temper_classical"

    vocab_size: int = 20_000
    embedding_size: int = 128
    dropout: float | int = 0.5
    initializer_range: float = 0.25
    pad_token_id: int | None = 0
    tie_word_embeddings: bool = False


class TextCNNConfig(ClassicalConfig):
    """Config of a `TextCNNForSequenceClassification`.

    Args:
        windows: Widths of the convolutions in words (Kim 2014: 3, 4, 5).
        filters: Filters of each width (Kim 2014: 100).
    """

    model_type = "text_cnn"

    windows: list[int] | tuple[int, ...] = (3, 4, 5)
    filters: int = 100


class BiLSTMConfig(ClassicalConfig):
    """Config of a `BiLSTMForSequenceClassification`.

    Args:
        hidden_size: Width of one direction's state.
        num_hidden_layers: Layers, one upon the other.
        pooling: ``max`` over the words, or ``attention``.
    """

    model_type = "bilstm"

    hidden_size: int = 128
    num_hidden_layers: int = 1
    pooling: str = "max"


class TextHANConfig(ClassicalConfig):
    """Config of a `TextHANForSequenceClassification`.

    Args:
        hidden_size: Width of one direction's state (Yang et al. 2016: 50).
        sentence_ends: Ids of the tokens that end a sentence.
        sentence_length: Most tokens of a sentence; longer ones are cut in pieces.
    """

    model_type = "text_han"

    hidden_size: int = 50
    sentence_ends: list[int] | tuple[int, ...] = ()
    sentence_length: int = 50
