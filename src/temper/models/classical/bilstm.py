"""BiLSTM: an LSTM over the words in both directions, pooled by the greatest value or by attention.

Source: Graves and Schmidhuber 2005 for the layer; max pooling over its states as Conneau et al.
2017 (arXiv 1705.02364), attention as Zhou et al. 2016 with the form of Yang et al. 2016.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from temper.models.classical.classifier import ClassicalBody, ClassicalClassifier, greatest
from temper.models.classical.configuration import BiLSTMConfig
from temper.models.classical.recurrent import AttentionPooling, BiRecurrence, Sequences


class BiLSTMModel(ClassicalBody):
    """BiLSTM without its head.

    Args:
        config: Its config.
    """

    config_class = BiLSTMConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.width = 2 * config.hidden_size
        sizes = [config.embedding_size, *[self.width] * (config.num_hidden_layers - 1)]
        self.layers = nn.ModuleList(
            BiRecurrence(size, config.hidden_size, "lstm") for size in sizes
        )
        self.between = nn.ModuleList(nn.Dropout(config.dropout) for _ in sizes[1:])
        self.attention = AttentionPooling(self.width) if config.pooling == "attention" else None
        self.post_init()

    def run(self, hidden: Tensor, mask: Tensor, input_ids: Tensor) -> tuple[list[Tensor], Tensor]:
        """Run the layers and pool the last one's states; as `ClassicalBody.run`."""
        sequences = Sequences.of_tokens(mask)
        states: list[Tensor] = []
        for place, layer in enumerate(self.layers):
            below = self.between[place - 1](states[-1]) if place else hidden
            states.append(layer(below, sequences, mask))
        pool = greatest if self.attention is None else self.attention
        return states, pool(states[-1], mask)


class BiLSTMForSequenceClassification(ClassicalClassifier):
    """BiLSTM with its head."""

    config_class = BiLSTMConfig
    body_class = BiLSTMModel
