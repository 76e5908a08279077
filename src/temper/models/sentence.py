"""Embed texts with a sentence encoder, compare them by cosine, and train the encoder (SetFit)."""

from __future__ import annotations

import logging
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModel
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from temper.errors import ModelError
from temper.functional.resampling import FloatArray
from temper.models.folders import save_model
from temper.models.hf import PretrainedReader
from temper.models.modes import in_mode
from temper.models.standalone.mean_pooled import mean_embedding
from temper.seeding import seeded

PAIRS: Final = 16
"""Text pairs per training step of `contrast`: SetFit's default."""


class SentenceEncoder(PretrainedReader):
    """A sentence encoder: the mean of the last hidden states, scaled to length 1.

    The model runs in eval mode, and an embedding does not depend on its batch.

    Args:
        model: An encoder of Transformers without a head.
        tokenizer: Its tokenizer.
        max_length: Maximum number of tokens of a text, >= 1; 256 as for MiniLM's sentence encoder.
        batch_size: Texts per forward pass, >= 1.

    References:
        Reimers & Gurevych 2019, Sentence-BERT, section 3 (MEAN pooling).
    """

    kind = AutoModel
    spare = "pooler"

    def __init__(
        self, model: nn.Module, tokenizer: Any, *, max_length: int = 256, batch_size: int = 64
    ) -> None:
        super().__init__(model, tokenizer, max_length=max_length, batch_size=batch_size)

    @classmethod
    def check_kind(cls, config: Any, tokenizer: Any) -> None:
        """Raise a `ModelError` if the model has a decoder."""
        if getattr(config, "is_encoder_decoder", False):
            raise ModelError(
                f"A sentence encoder must be an encoder alone, and a {config.model_type} model has "
                "a decoder. Pass a model such as 'minilm'."
            )

    def embeddings(self, texts: Sequence[str]) -> FloatArray:
        """Embed n texts as rows of length 1, [n, D]; duplicates are computed once.

        A row is the mean of the last hidden states over all tokens, including special tokens.
        """
        distinct = {text: index for index, text in enumerate(dict.fromkeys(texts))}
        if not distinct:
            return np.zeros((0, 0))
        encoded = self.tokenizer(
            list(distinct), truncation=True, max_length=self.max_length, verbose=False
        )
        ids = [list(row) for row in encoded["input_ids"]]
        for text, row in zip(distinct, ids, strict=True):
            if not row:
                raise ModelError(f"The text {text!r:.40} has no token with this tokenizer.")
        result: FloatArray | None = None
        with in_mode(self.model, training=False), torch.no_grad():
            for indices, inputs in self.batches(ids):
                means = self._means(inputs)
                if result is None:
                    result = np.empty((len(ids), means.shape[1]))
                result[indices] = means
        assert result is not None
        return result[[distinct[text] for text in texts]]

    def similarity(self, texts: Sequence[str], others: Sequence[str]) -> FloatArray:
        """Return the cosine of each text and its counterpart in ``others``, [n], in [-1, 1]."""
        both = self.embeddings([*texts, *others])
        cosine = (both[: len(texts)] * both[len(texts) :]).sum(axis=1)
        # Rounding lets a text's cosine with itself pass 1 by 1e-16.
        return np.asarray(np.clip(cosine, -1.0, 1.0))

    def _means(self, inputs: dict[str, Tensor]) -> FloatArray:
        hidden = self.model(**inputs).last_hidden_state.double()
        means = mean_embedding(hidden, inputs["attention_mask"])
        if not bool((torch.isfinite(means).all(dim=1) & means.any(dim=1)).all()):
            raise ModelError(
                "The sentence encoder's embedding of a text is not finite, or is 0. Load it in "
                "fp32, or choose another encoder."
            )
        return np.asarray(means.cpu().numpy(), dtype=np.float64)


def contrast(
    encoder: Any,
    tokenizer: Any,
    texts: Sequence[str],
    labels: Sequence[int],
    *,
    max_length: int,
    steps: int,
    seed: int,
) -> None:
    """Train an encoder, in place, so that texts of one class move closer together.

    It runs the package ``setfit`` with its defaults (learning rate 2e-5, as many pairs within as
    across classes), on ``steps`` times `PAIRS` pairs. Its memory grows with the square of the
    number of texts. ``seed`` sets the order of the pairs and the dropout.

    References:
        Tunstall et al. 2022, Efficient few-shot learning without prompts (SetFit), section 3.1.
    """
    from sentence_transformers import SentenceTransformer
    from setfit import SetFitModel, Trainer, TrainingArguments

    logging.getLogger("setfit").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder, _own_draws(seed, encoder.device):
        save_model(encoder, tokenizer, folder)
        body = SentenceTransformer(folder, device=str(encoder.device))
        # `TrainingArguments.max_length` cuts the texts of SetFit's head only, not those of pairs.
        body.max_seq_length = max_length
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            batch_size=PAIRS,
            seed=seed % 2**32,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
        )
        trainer = Trainer(model=SetFitModel(model_body=body, model_head=None), args=arguments)
        for callback in (ProgressCallback, PrinterCallback):
            trainer.st_trainer.remove_callback(callback)
        trainer.train_embeddings(list(texts), list(labels), args=arguments)
        trained: Any = body[0]
        weights = trained.auto_model.state_dict()
        encoder.load_state_dict({name: weights[name] for name in encoder.state_dict()})


@contextmanager
def _own_draws(seed: int, device: torch.device) -> Iterator[None]:
    """Seed random draws inside this context; then restore all global generators."""
    states = random.getstate(), np.random.get_state()
    try:
        with seeded(seed, device):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
