"""TextCNN: convolutions of several widths over the words, the greatest answer of each filter.

Source: Kim 2014 (arXiv 1408.5882), CNN-rand and, with pre-trained vectors, CNN-non-static.
Differs: rows are padded with zeros by half a window on both sides, so that a row shorter than a
window has an answer too; dropout also stands on the embedded words, where adaptive dropout sets it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from temper.models.classical.classifier import (
    ClassicalBody,
    ClassicalClassifier,
    TextCNNConfig,
    greatest,
)


class ConvolutionBank(nn.Module):
    """Convolutions of several widths side by side: ``relu(w * x[t-l : t+r] + b)`` (Eq. 2).

    Args:
        size: D, width of the input.
        windows: Widths in words.
        filters: Filters of each width.
    """

    def __init__(self, size: int, windows: tuple[int, ...], filters: int) -> None:
        super().__init__()
        self.windows = windows
        self.convolutions = nn.ModuleList(nn.Conv1d(size, filters, window) for window in windows)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Run all convolutions.

        Args:
            hidden: [B, T, D], 0 at padding.
            mask: Real tokens [B, T], boolean.

        Returns:
            [B, T, len(windows) * filters], 0 at padding.
        """
        words = hidden.transpose(1, 2)
        found = []
        for convolution, window in zip(self.convolutions, self.windows, strict=True):
            before = (window - 1) // 2
            found.append(convolution(F.pad(words, (before, window - 1 - before))))
        return torch.cat(found, dim=1).relu().transpose(1, 2) * mask.unsqueeze(-1)


class TextCNNModel(ClassicalBody):
    """TextCNN without its head.

    Args:
        config: Its config.
    """

    config_class = TextCNNConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.width = len(config.windows) * config.filters
        # A list of one: where the repeated blocks of other networks are looked for.
        self.layers = nn.ModuleList(
            [ConvolutionBank(config.embedding_size, tuple(config.windows), config.filters)]
        )
        self.post_init()

    def run(self, hidden: Tensor, mask: Tensor, input_ids: Tensor) -> tuple[list[Tensor], Tensor]:
        """Run the convolutions and pool the greatest answers; as `ClassicalBody.run`."""
        answers = self.layers[0](hidden, mask)
        return [answers], greatest(answers, mask)


class TextCNNForSequenceClassification(ClassicalClassifier):
    """TextCNN with its head."""

    config_class = TextCNNConfig
    body_class = TextCNNModel
