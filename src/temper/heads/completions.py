"""Completions: target tokens of a causal or an encoder-decoder language model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from temper.errors import DataError, ModelError
from temper.functional.losses import Divergence
from temper.heads.classification import Classification
from temper.heads.head import UNLABELED, Gives
from temper.lazy import Tensor, torch
from temper.types import Batch

CHUNK = 2**24
"""Number of logits that a loss or divergence reads at once: 64 MiB in fp32."""


class Completions(Classification):
    """Target tokens of a causal language model; C is the vocabulary.

    Labels [B, T] are token ids of the targets, and -100 for prompt and padding. The logits at
    position t predict the label at t + 1. The U units are the positions at which any row of the
    batch has a target. ``lm_head`` runs only on those if the model accepts ``logits_to_keep``. To
    save memory, losses and divergences are computed in chunks of units and recomputed in the
    backward pass.
    """

    name: ClassVar[str] = "completions"
    labels: ClassVar[str] = "completions of prompts"
    gives: ClassVar[Gives] = "texts"
    auto_class: ClassVar[str] = "AutoModelForCausalLM"
    task_type: ClassVar[str | None] = "CAUSAL_LM"
    named: ClassVar[bool] = False
    one_unit: ClassVar[bool] = False
    not_in_windows: ClassVar[str] = "a language model predicts a token from all tokens before it"

    def inputs(self, batch: Batch, model: Any) -> dict[str, Any]:
        """Ask the model for logits at the units' positions only."""
        return {"logits_to_keep": self._positions(batch)}

    def logits(self, output: Any, batch: Batch, *, model: str = "the model") -> Tensor:
        """Return the logits at the units' positions [B, U, C], in the model's precision."""
        logits: Tensor = getattr(output, "logits", output)
        positions = self._positions(batch)
        if logits.dim() == 3 and logits.shape[1] == batch.ids.shape[1]:
            return logits[:, positions]
        if logits.dim() != 3 or logits.shape[1] != len(positions):
            raise ModelError(
                f"Expected logits at {batch.ids.shape[1]} or {len(positions)} positions, but "
                f"{model} returned {tuple(logits.shape)}. Load the checkpoint with "
                "AutoModelForCausalLM."
            )
        return logits

    def unit_mask(self, batch: Batch, logits: Tensor) -> Tensor:
        """Return whether a row has a target at each unit's position, [B, U]."""
        return self._targets(batch)[:, self._positions(batch)]

    def units(self, batch: Batch) -> int:
        """Count the target tokens."""
        return int(self._targets(batch).sum())

    def movable(self, batch: Batch) -> Tensor:
        """Return which tokens an attack may move, [B, T]: the prompt, or all if there is none."""
        if batch.labels is None:
            return batch.mask
        prompt = batch.mask & (batch.labels == UNLABELED)
        # The first token is never a target, so a row with only this token unlabeled has no prompt.
        alone = ~prompt[:, 1:].any(1, keepdim=True)
        return prompt | (batch.mask & alone)

    def unit_labels(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the target token ids [B, U]."""
        following = labels[:, 1:] if labels.dim() == 2 else labels
        if following.dim() == 2:
            following = following[:, (following != UNLABELED).any(0)]
        if following.shape != logits.shape[:2]:
            raise DataError(
                f"Labels of shape {tuple(labels.shape)} do not fit logits of shape "
                f"{tuple(logits.shape)}. Pass token ids [B, T] as labels, and -100 for tokens that "
                "are no targets."
            )
        return following

    def unit_loss(self, logits: Tensor, labels: Tensor, *, smoothing: float) -> Tensor:
        whole = super().unit_loss

        def loss(scores: Tensor, targets: Tensor) -> Tensor:
            return whole(scores.unsqueeze(1), targets.unsqueeze(1), smoothing=smoothing).squeeze(1)

        return in_chunks(loss, logits, labels)

    def divergence(self, first: Tensor, second: Tensor, *, kind: Divergence) -> Tensor:
        whole = super().divergence
        return in_chunks(lambda a, b: whole(a, b, kind=kind), first, second)

    def distillation(self, student: Tensor, teacher: Tensor, *, temperature: float) -> Tensor:
        whole = super().distillation
        return in_chunks(lambda a, b: whole(a, b, temperature=temperature), student, teacher)

    def _targets(self, batch: Batch) -> Tensor:
        """Return whether the token after each position is a target, [B, T - 1]."""
        following = batch.mask if batch.labels is None else batch.labels != UNLABELED
        return following[:, 1:]

    def _positions(self, batch: Batch) -> Tensor:
        """Return the positions [U] at which the next token is a target in any row."""
        return self._targets(batch).any(0).nonzero().flatten()


class Seq2Seq(Completions):
    """Target tokens of an encoder-decoder model: one unit per label, U = T'.

    Labels are [B, T'], -100 at padding. Perturbations change the embeddings of the encoder's input.
    """

    name: ClassVar[str] = "seq2seq"
    labels: ClassVar[str] = "texts to write"
    auto_class: ClassVar[str] = "AutoModelForSeq2SeqLM"
    task_type: ClassVar[str | None] = "SEQ_2_SEQ_LM"
    not_in_windows: ClassVar[str] = "the decoder reads one encoded text"

    def inputs(self, batch: Batch, model: Any) -> dict[str, Any]:
        """Return ``decoder_input_ids``: the labels shifted by one, unless the batch has them."""
        if "decoder_input_ids" in batch.inputs:
            return {}
        if batch.labels is None:
            raise DataError(
                "A batch without labels has no decoder_input_ids, which an encoder-decoder model "
                "needs. Pass them, or labels."
            )
        shift = model.prepare_decoder_input_ids_from_labels
        return {"decoder_input_ids": shift(labels=batch.labels)}

    def logits(self, output: Any, batch: Batch, *, model: str = "the model") -> Tensor:
        """Return the decoder's logits [B, T', C]."""
        logits: Tensor = output.logits
        return logits

    def unit_mask(self, batch: Batch, logits: Tensor) -> Tensor:
        """Return which labels are not padding, [B, T']."""
        if batch.labels is None:
            return super(Completions, self).unit_mask(batch, logits)
        return batch.labels != UNLABELED

    def movable(self, batch: Batch) -> Tensor:
        """Return which tokens an attack may move, [B, T]: all tokens of the encoder's input."""
        return batch.mask

    def units(self, batch: Batch) -> int:
        """Count the target tokens."""
        real = batch.inputs["decoder_input_ids"] if batch.labels is None else batch.labels
        return real.numel() if batch.labels is None else int((real != UNLABELED).sum())

    def unit_labels(self, logits: Tensor, labels: Tensor) -> Tensor:
        if labels.shape != logits.shape[:2]:
            raise DataError(
                f"Labels of shape {tuple(labels.shape)} do not fit the decoder's logits of shape "
                f"{tuple(logits.shape)}. Pad them with -100, for example by DataCollatorForSeq2Seq."
            )
        return labels


def in_chunks(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Apply a function to chunks of units; recompute it in the backward pass to save memory.

    ``tensors`` are [B, U, ...]; the function maps chunks [N, ...] to [N]. The result is [B, U].
    """
    flat = [tensor.flatten(0, 1) for tensor in tensors]
    size = max(1, CHUNK // max(1, flat[0].shape[-1]))
    chunks = list(zip(*(torch.split(item, size) for item in flat), strict=True))
    if len(chunks) == 1 or not torch.is_grad_enabled():
        parts = [function(*chunk) for chunk in chunks]
    else:
        again = torch.utils.checkpoint.checkpoint
        parts = [again(function, *chunk, use_reentrant=False) for chunk in chunks]
    return torch.cat(parts).view(tensors[0].shape[:2])
