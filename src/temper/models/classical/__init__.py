"""Classical networks (TextCNN, BiLSTM, TextHAN) as Transformers models, trained from scratch."""

from temper.models.classical.registry import ARCHITECTURES

__all__ = ["ARCHITECTURES"]
