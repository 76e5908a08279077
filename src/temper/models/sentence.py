"""Say how alike two texts are: the cosine of their mean-pooled embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModel

from temper.errors import ModelError
from temper.functional.resampling import FloatArray
from temper.models.hf import PretrainedReader, describe
from temper.models.modes import in_mode


class SentenceEncoder(PretrainedReader):
    """A sentence encoder: the mean of the last hidden states, of length 1.

    The model is in eval mode while it answers, and no embedding depends on its batch.

    Args:
        model: An encoder of Transformers without a head.
        tokenizer: Its tokenizer.
        max_length: Tokens a text is cut to, >= 1; 256 is what MiniLM's sentence encoder reads.
        batch_size: Texts of a forward pass, >= 1.

    Raises:
        ModelError: The model is an encoder with a decoder, or a number is below its bound.

    References:
        Reimers & Gurevych 2019, Sentence-BERT, section 3 (MEAN pooling).
    """

    kind = AutoModel
    spare = "pooler"

    def __init__(
        self, model: nn.Module, tokenizer: Any, *, max_length: int = 256, batch_size: int = 64
    ) -> None:
        super().__init__(model, tokenizer, max_length=max_length, batch_size=batch_size)
        _check_encoder(getattr(model, "config", None))

    @staticmethod
    def check(name: str) -> None:
        """Find what is wrong with a sentence encoder, without loading its weights.

        Args:
            name: A short name, a Hub id, or a folder with a checkpoint.

        Raises:
            ModelError: There is none under that name, or it has a decoder.
        """
        config, _ = describe(name)
        _check_encoder(config)

    def embeddings(self, texts: Sequence[str]) -> FloatArray:
        """Embed texts.

        ``mean over the row's real tokens of h_t``, special tokens included, divided by its length.

        Args:
            texts: n texts; equal ones are embedded once.

        Returns:
            [n, D], each row of length 1.

        Raises:
            ModelError: A text gives no token, or its embedding is not finite or 0.
        """
        distinct = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        if not distinct:
            return np.zeros((0, 0))
        encoded = self.tokenizer(
            list(distinct), truncation=True, max_length=self.max_length, verbose=False
        )
        ids = [list(row) for row in encoded["input_ids"]]
        for text, row in zip(distinct, ids, strict=True):
            if not row:
                raise ModelError(f"The text {text!r:.40} gives no token with this tokenizer.")
        found: FloatArray | None = None
        with in_mode(self.model, training=False), torch.no_grad():
            for places, inputs in self.batches(ids):
                means = self._means(inputs)
                if found is None:
                    found = np.empty((len(ids), means.shape[1]))
                found[places] = means
        assert found is not None
        return found[[distinct[text] for text in texts]]

    def similarity(self, texts: Sequence[str], others: Sequence[str]) -> FloatArray:
        """Compare each text with its other.

        Args:
            texts: n texts.
            others: n texts.

        Returns:
            Cosine of each pair [n], in [-1, 1].

        Raises:
            ModelError: They differ in number, or a text cannot be embedded.
        """
        if len(texts) != len(others):
            raise ModelError(f"{len(texts)} texts cannot be compared with {len(others)} others.")
        both = self.embeddings([*texts, *others])
        cosine = (both[: len(texts)] * both[len(texts) :]).sum(axis=1)
        # Rounding lets a text's cosine with itself pass 1 by 1e-16.
        return np.asarray(np.clip(cosine, -1.0, 1.0))

    def _means(self, inputs: dict[str, Tensor]) -> FloatArray:
        """Return the embeddings [B, D] of some rows."""
        hidden = self.model(**inputs).last_hidden_state.double()
        real = inputs["attention_mask"].to(hidden.dtype).unsqueeze(-1)
        # A mean of states times 0 would still be NaN where a padded state is.
        means = torch.where(real > 0, hidden, 0.0).sum(dim=1) / real.sum(dim=1)
        lengths = means.norm(dim=1, keepdim=True)
        if not bool((torch.isfinite(lengths) & (lengths > 0)).all()):
            raise ModelError(
                "The sentence encoder's embedding of a text is not finite, or 0. Load it in fp32, "
                "or give another."
            )
        return np.asarray((means / lengths).cpu().numpy(), dtype=np.float64)


def _check_encoder(config: Any) -> None:
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"A sentence encoder must be an encoder alone, and a {config.model_type} model has a "
            "decoder. Give a model such as 'minilm'."
        )
