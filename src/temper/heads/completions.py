"""Completions: the target tokens of a language model, after a prompt or from an encoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from temper.errors import DataError, ModelError
from temper.functional.losses import Divergence
from temper.heads.classification import Classification
from temper.heads.head import UNLABELED, Gives
from temper.lazy import torch
from temper.types import Batch

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 2**24
"""Logits that a loss or divergence reads at once: 64 MiB in fp32."""


class Completions(Classification):
    """Next tokens of a causal language model, C = vocabulary.

    Labels are [B, T], the ids of the target tokens and -100 elsewhere (prompt, padding). The logits
    at position t predict the label at t + 1. A unit is such a position: U counts the positions at
    which any row of the batch has a target, and ``lm_head`` is applied to those alone if the model
    takes ``logits_to_keep``. Losses and divergences are computed over a part of the units at a time
    and again in the backward pass, so no copy of all logits in fp32 is kept.
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
        """Let the model compute logits at the units' positions only."""
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
                f"{model} returned {tuple(logits.shape)}."
            )
        return logits

    def unit_mask(self, batch: Batch, logits: Tensor) -> Tensor:
        """Return which units a row has a target for [B, U]."""
        return self._targets(batch)[:, self._positions(batch)]

    def units(self, batch: Batch) -> int:
        """Count the target tokens."""
        return int(self._targets(batch).sum())

    def movable(self, batch: Batch) -> Tensor:
        """Return which tokens an attack may move [B, T]: the prompt's; of rows without one, all."""
        if batch.labels is None:
            return batch.mask
        prompt = batch.mask & (batch.labels == UNLABELED)
        # The first token is never predicted, so alone it is no prompt.
        alone = ~prompt[:, 1:].any(1, keepdim=True)
        return prompt | (batch.mask & alone)

    def unit_labels(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the target ids [B, U]."""
        following = labels[:, 1:] if labels.dim() == 2 else labels
        if following.dim() == 2:
            following = following[:, (following != UNLABELED).any(0)]
        if following.shape != logits.shape[:2]:
            raise DataError(
                f"The labels {tuple(labels.shape)} do not fit the logits. Give the token ids as "
                "labels, and -100 where nothing is to be predicted."
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
        """Return at which positions [B, T - 1] the next token is a target."""
        following = batch.mask if batch.labels is None else batch.labels != UNLABELED
        return following[:, 1:]

    def _positions(self, batch: Batch) -> Tensor:
        """Return the positions [U] before which no row of the batch has a target."""
        return self._targets(batch).any(0).nonzero().flatten()


class Seq2Seq(Completions):
    """Target tokens of an encoder-decoder model: the decoder's logits [B, U, C] at U = T' labels.

    Labels are [B, T'], -100 at padding. Unless the collator gives ``decoder_input_ids``, the model
    shifts the labels itself. Perturbations act on what the encoder reads.
    """

    name: ClassVar[str] = "seq2seq"
    labels: ClassVar[str] = "texts to write"
    auto_class: ClassVar[str] = "AutoModelForSeq2SeqLM"
    task_type: ClassVar[str | None] = "SEQ_2_SEQ_LM"
    not_in_windows: ClassVar[str] = "the decoder reads one encoded text"

    def inputs(self, batch: Batch, model: Any) -> dict[str, Any]:
        """Return the decoder's input ids: the labels shifted by one."""
        if "decoder_input_ids" in batch.inputs:
            return {}
        if batch.labels is None:
            raise DataError(
                "A batch without labels has no decoder_input_ids, which an encoder-decoder model "
                "needs. Give them, or labels."
            )
        shift = model.prepare_decoder_input_ids_from_labels
        return {"decoder_input_ids": shift(labels=batch.labels)}

    def logits(self, output: Any, batch: Batch, *, model: str = "the model") -> Tensor:
        """Return the decoder's logits [B, T', C]."""
        logits: Tensor = output.logits
        return logits

    def unit_mask(self, batch: Batch, logits: Tensor) -> Tensor:
        """Return which labels are real [B, T']."""
        if batch.labels is None:
            return super(Completions, self).unit_mask(batch, logits)
        return batch.labels != UNLABELED

    def movable(self, batch: Batch) -> Tensor:
        """Return which tokens an attack may move [B, T]: all real ones that the encoder reads."""
        return batch.mask

    def units(self, batch: Batch) -> int:
        """Count the target tokens."""
        real = batch.inputs["decoder_input_ids"] if batch.labels is None else batch.labels
        return real.numel() if batch.labels is None else int((real != UNLABELED).sum())

    def unit_labels(self, logits: Tensor, labels: Tensor) -> Tensor:
        if labels.shape != logits.shape[:2]:
            raise DataError(
                f"The labels {tuple(labels.shape)} do not fit the decoder's logits "
                f"{tuple(logits.shape)}. Pad them with -100: DataCollatorForSeq2Seq."
            )
        return labels


def in_chunks(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Compute a function of units, some at a time, and again in the backward pass.

    It maps tensors [N, ...] to [N]; the result is [B, U]. The first of the tensors [B, U, ...]
    decides how many units are taken at once.
    """
    flat = [each.flatten(0, 1) for each in tensors]
    size = max(1, CHUNK // max(1, flat[0].shape[-1]))
    chunks = list(zip(*(torch.split(each, size) for each in flat), strict=True))
    if len(chunks) == 1 or not torch.is_grad_enabled():
        parts = [function(*chunk) for chunk in chunks]
    else:
        again = torch.utils.checkpoint.checkpoint
        parts = [again(function, *chunk, use_reentrant=False) for chunk in chunks]
    return torch.cat(parts).view(tensors[0].shape[:2])
