"""Cut tokens out of a forward pass: zero them in the feed-forward output of each block.

One forward pass returns the model's attention, by which a method chooses the tokens. In the next, a
hook zeros them in the output of the last matrix of every encoder block (found by one probing
forward). The dropout and residual connection after it are unchanged.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from temper.errors import ModelError
from temper.functional.precision import at_least_single
from temper.models.blocks import encoder_and_decoder, recomputes, remove_hooks
from temper.models.probing import innermost, switch_back, switch_to_eager
from temper.seeding import seeded
from temper.types import Batch

INSTEAD = "Use a method that does not read attention (r_drop, say), or another model."


class BlockCuts:
    """Reads the attention of one forward pass, and zeros tokens in another.

    Only eager attention returns probabilities, so the model is switched to it until
    ``remove_hooks``.

    Args:
        model: The network, without any distributed wrapper.
        blocks: Its (name, block) pairs; in an encoder-decoder only the encoder's are used.
        batch: Any batch, for the probing forward.
        extra: Further arguments of the forward.
        time_first: Whether hidden states are [T, B, D] (XLNet).

    Attributes:
        scores: How much attention each token received in the forward pass after ``watch``: one [B,
            T] per call of a block, as computed by `attended`.
        modules: Name of a block -> its last matrix.

    Raises:
        ModelError: The model cannot return attention probabilities, or a block has no matrix.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[tuple[str, nn.Module]],
        batch: Batch,
        *,
        extra: dict[str, Any],
        time_first: bool,
    ) -> None:
        self.scores: tuple[Tensor, ...] = ()
        self.modules: dict[str, nn.Module] = {}
        self._model, self._time_first = model, time_first
        self._watched: Tensor | None = None
        self._cuts: tuple[Tensor, ...] | None = None
        self._calls = 0
        self._hooks: list[RemovableHandle] = []
        inner = innermost(model)
        encoder, _ = encoder_and_decoder(inner, blocks)
        taken = inspect.signature(inner.forward).parameters
        takes_any = any(item.kind is item.VAR_KEYWORD for item in taken.values())
        if not encoder or not ("output_attentions" in taken or takes_any):
            raise ModelError(
                f"Cutting spans needs a transformer that returns attention probabilities, and "
                f"{type(inner).__name__} has no transformer blocks, or its forward "
                f"does not take output_attentions. {INSTEAD}"
            )
        self._implementation = switch_to_eager(
            model, purpose="Attention probabilities", instead=INSTEAD
        )
        try:
            self.modules = _last_matrices(model, encoder, batch, extra=extra)
        except BaseException:
            self.remove_hooks()
            raise
        distinct = {id(module): module for module in self.modules.values()}
        for module in distinct.values():
            self._hooks.append(module.register_forward_hook(self._cut))
        self._hooks.append(model.register_forward_pre_hook(self._begin, with_kwargs=True))
        self._hooks.append(model.register_forward_hook(self._end))

    def watch(self, mask: Tensor) -> None:
        """Record the attention of the next forward in ``scores``; ``mask`` [B, T] marks tokens."""
        if recomputes(self._model):
            raise ModelError(
                "Cuts do not support gradient checkpointing, because the recomputed blocks would "
                "not be cut. Switch it off, or use a method without cuts."
            )
        self._watched, self.scores = mask, ()

    @contextmanager
    def cutting(self, cuts: Sequence[Tensor]) -> Iterator[None]:
        """Zero tokens in the forward inside this context, by a mask [B, T] per call of a block."""
        self._cuts = tuple(cuts)
        try:
            yield
            self._check_calls(len(self._cuts))
        finally:
            self._cuts = None

    def reset(self) -> None:
        """Make forward passes behave as without cuts; the hooks stay."""
        self._watched, self._cuts, self.scores = None, None, ()

    def remove_hooks(self) -> None:
        """Remove all hooks, and restore the model's attention implementation."""
        self.reset()
        remove_hooks(self._hooks)
        switch_back(self._model, self._implementation)
        self._implementation = None

    def _begin(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._calls = 0
        if self._watched is None:
            return None
        return args, {**kwargs, "output_attentions": True}

    def _end(self, _: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self._watched is None:
            return
        mask, self._watched = self._watched, None
        result = getattr(output, "encoder_attentions", None) or getattr(output, "attentions", None)
        result = tuple(result or ())
        self._check_calls(len(result))
        rows, tokens = mask.shape
        for item in result:
            shape = None if item is None else tuple(item.shape)
            if shape is None or len(shape) != 4 or shape[0] != rows or shape[2:] != (tokens,) * 2:
                raise ModelError(
                    f"Expected attention probabilities of shape ({rows}, heads, {tokens}, "
                    f"{tokens}), got {shape}. {INSTEAD}"
                )
        self.scores = tuple(attended(item, mask) for item in result)

    def _check_calls(self, received: int) -> None:
        if self._calls != received or not received:
            raise ModelError(
                f"Expected attention probabilities from each of {self._calls} calls of blocks, got "
                f"{received}. The model returns none, or skips blocks at random (set layerdrop to "
                f"0). {INSTEAD}"
            )

    def _cut(self, module: nn.Module, _: tuple[Any, ...], output: Any) -> Tensor | None:
        call, self._calls = self._calls, self._calls + 1
        if self._cuts is None or call >= len(self._cuts):
            return None
        cut = self._cuts[call]
        cut = cut.T if self._time_first else cut
        if isinstance(output, Tensor) and output.dim() == 2:  # Some decoders flatten the batch.
            cut = cut.reshape(-1)
        if not isinstance(output, Tensor) or output.shape[:-1] != cut.shape:
            came = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ModelError(
                f"The last matrix of a block returned {came}, which does not fit the mask of cut "
                f"tokens, {tuple(cut.shape)}. {INSTEAD}"
            )
        return output.masked_fill(cut.unsqueeze(-1), 0.0)


def attended(probabilities: Tensor, mask: Tensor) -> Tensor:
    """Return the attention that each token receives: mean over heads, sum over the queries.

    ``probabilities`` are [B, H, T, T], query by key. Queries at padding do not count. The result
    [B, T] is in at least fp32, detached.

    Example:
        >>> attended(torch.tensor([[[[0.75, 0.25], [0.5, 0.5]]]]), torch.tensor([[1, 1]]))
        tensor([[1.2500, 0.7500]])
    """
    mean = at_least_single(probabilities.detach()).mean(1)
    return torch.where(mask.bool().unsqueeze(-1), mean, 0.0).sum(1)


def _last_matrices(
    model: nn.Module,
    blocks: Sequence[tuple[str, nn.Module]],
    batch: Batch,
    *,
    extra: dict[str, Any],
) -> dict[str, nn.Module]:
    """Return block name -> the last matrix that the block calls in a forward of one row."""
    hooks: list[RemovableHandle] = []
    result: dict[str, nn.Module] = {}

    def note(name: str, module: nn.Module, *_: Any) -> None:
        result[name] = module

    # Hooks of outer layers fire last, so a LoRA layer counts instead of the matrices inside it.
    for name, block in blocks:
        for module in block.modules():
            weight = getattr(module, "weight", None)
            # Includes LoRA's and GPT-2's layers.
            is_matrix = isinstance(weight, Tensor) and weight.dim() == 2
            if is_matrix and not isinstance(module, nn.Embedding):
                hooks.append(module.register_forward_hook(partial(note, name)))
    row = {name: tensor[:1] for name, tensor in batch.inputs.items()}
    try:
        with torch.no_grad(), seeded(0, batch.device):
            model(**row, **extra)
    finally:
        remove_hooks(hooks)
    missing = [name for name, _ in blocks if name not in result]
    if missing:
        raise ModelError(
            f"Block {missing[0]!r} has no matrix, and spans are cut from its output. {INSTEAD}"
        )
    return result
