"""Record the hidden states of a forward, differentiable with respect to the word embeddings.

`StateTracer` hooks the embedding module and the blocks. A forward inside ``tracing`` records the
embeddings and the output of every block. The embeddings are detached, so gradients do not reach the
embedding table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from temper.errors import ModelError
from temper.functional.precision import at_least_single
from temper.models.blocks import encoder_and_decoder, recomputes, remove_hooks
from temper.models.probing import (
    PLAIN,
    Place,
    implementation,
    innermost,
    switch_back,
    switch_to_eager,
)

INSTEAD = "Use scheme='four_point', which needs no second derivative."


@dataclass
class Trace:
    """The record of one traced forward.

    Args:
        words: The word embeddings of the forward [B, T, E]; the graph starts here.
        states: Output [B, T, D] of every call of a block, in order; in an encoder-decoder only of
            the decoder.
        logits: [B, C], set by the caller.
        time_first: Whether states are [T, B, D] instead (XLNet).
        others: Further lookups in the same table (a decoder's), also detached: a function that
            repeats the lookup, and the values in the forward.
    """

    words: Tensor | None = None
    states: list[Tensor] = field(default_factory=list)
    logits: Tensor | None = None
    time_first: bool = False
    others: list[tuple[Callable[[], Tensor], Tensor]] = field(default_factory=list)

    @property
    def root(self) -> Tensor:
        """The word embeddings at which the graph starts; the forward must have run."""
        assert self.words is not None
        return self.words

    def at_head(self) -> list[Tensor]:
        """Return each block's state [B, D] at the position that the head reads.

        The gradient of the logits shows that position: [CLS] for BERT, the last token for decoders,
        with padding on either side. For a head that pools all tokens, the mean over them is
        returned.
        """
        if not self.states or self.logits is None:
            raise ModelError(
                "Hidden states are needed, but the model has no repeated blocks. Use a method "
                "that reads the logits (jacobian), or layers='logits'."
            )
        weight = read_positions(self.logits, self.states[-1], time_first=self.time_first)
        weight = weight.to(self.states[-1].dtype).unsqueeze(-1)
        rows_first = (s.transpose(0, 1) if self.time_first else s for s in self.states)
        # The blocks process the windows of a text as separate sequences.
        texts = (state.reshape(*weight.shape[:2], state.shape[-1]) for state in rows_first)
        return [(state * weight).sum(1) for state in texts]


def read_positions(logits: Tensor, last: Tensor, *, time_first: bool = False) -> Tensor:
    """Find the positions that the head reads, by the gradient of the logits.

    Args:
        logits: [B, C], with their graph.
        last: Output of the last block [B, T, D] in that graph; for texts in W windows [B * W, T,
            D].
        time_first: Whether ``last`` is [T, B, D].

    Returns:
        Weights [B, T], or [B, W * T] for windows: equal at the positions that are read, 0
        elsewhere, with sum 1 in each row.
    """
    # Different weights, so that no two classes cancel (for example in a softmax head).
    cotangent = torch.linspace(1.0, 2.0, logits.shape[-1], device=logits.device).to(logits.dtype)
    (gradient,) = torch.autograd.grad(
        logits, last, cotangent.expand_as(logits), retain_graph=True, allow_unused=True
    )
    if gradient is None or gradient.dim() != 3:
        raise ModelError(
            "The logits do not depend on the output of the last block, so the head's input is "
            "unknown. Use a method that reads the logits (jacobian), or layers='logits'."
        )
    read = gradient.abs().amax(-1) > 0
    read = (read.T if time_first else read).reshape(len(logits), -1)
    # A head of ReLUs may be dead for a row; its position then follows from the other rows.
    dead = ~read.any(1)
    if bool(dead.any()):
        usual = read.float().mean(0) >= 0.5 * (1 - dead.float().mean())
        if bool(dead.all()) or not bool(usual.any()):
            raise ModelError(
                "The head is zero or dead, so its input position cannot be determined. "
                "Re-initialize the head."
            )
        read = torch.where(dead.unsqueeze(1), usual, read)
    fraction = at_least_single(read.to(last.dtype))
    return fraction / fraction.sum(1, keepdim=True)


class StateTracer:
    """Hooks a network so that forwards can be traced; outside ``tracing`` the hooks do nothing."""

    def __init__(
        self, model: nn.Module, blocks: Sequence[tuple[str, nn.Module]], site: Place
    ) -> None:
        self._model, self._embedding, self._time_first = model, site.module, site.time_first
        self._trace: Trace | None = None
        self._reading = False
        self._shift: Tensor | None = None
        self._texts: int | None = None
        self._implementation: str | None = None
        self._kernels = ExitStack()
        self._donating: bool | None = None
        if compiled(model):
            # A trace is differentiated several times, but compiled graphs free their buffers.
            self._donating = torch._functorch.config.donated_buffer
            torch._functorch.config.donated_buffer = False
        # A tensor that a hook keeps has a gradient only if no compiled graph includes the hook.
        # Not a decorator, which would import the compiler (a second) with this module.
        border: Callable[[Any], Any] = torch.compiler.disable
        root, note, pause = border(self._root), border(self._note), border(self._pause)
        # The first hook, so that later ones add their perturbation to the root.
        self._hooks = [site.module.register_forward_hook(root, prepend=True)]
        # A decoder looks up its words in another module with the same table.
        self._hooks += [
            module.register_forward_hook(root, prepend=True)
            for module in model.modules()
            if isinstance(module, nn.Embedding)
            and module.weight is site.module.weight
            and module is not site.module
        ]
        # In an encoder-decoder the head reads the decoder's states.
        first, behind = encoder_and_decoder(innermost(model), blocks)
        for _, block in behind or first:
            self._hooks += [
                block.register_forward_pre_hook(pause),
                block.register_forward_hook(note),
            ]

    @contextmanager
    def tracing(
        self, *, shift: Tensor | None = None, twice: bool = False, texts: int | None = None
    ) -> Iterator[Trace]:
        """Trace the forward inside this context, and yield the trace to be filled.

        Args:
            shift: Added to the word embeddings [B, T, E].
            texts: B for texts in W windows, whose embeddings are then [B, W * T, E]; None without
                windows.
            twice: Whether the trace will be differentiated twice. Attention then uses operations
                with a second derivative. If blocks are recomputed in the backward, it does so until
                ``reset``. A model without such a kernel is switched to eager attention until
                ``remove_hooks``.

        Raises:
            ModelError: The model's attention has no second derivative.
        """
        self._trace, self._shift = Trace(time_first=self._time_first), shift
        self._texts = texts
        with ExitStack() as stack:
            if twice:
                stack.enter_context(self._differentiable_attention())
                # cuDNN's recurrent layers have no second derivative, but PyTorch's own do.
                if any(isinstance(module, nn.RNNBase) for module in self._model.modules()):
                    stack.enter_context(torch.backends.cudnn.flags(enabled=False))
            try:
                yield self._trace
            finally:
                self._trace, self._shift = None, None

    @contextmanager
    def reading(self) -> Iterator[Trace]:
        """Trace the forward inside this context without a graph, except for the head.

        It costs as much as a forward without a graph, and the trace has no ``root``. The head's
        graph is needed by `Trace.at_head`.
        """
        self._trace, self._reading = Trace(time_first=self._time_first), True
        try:
            with torch.no_grad():
                yield self._trace
        finally:
            self._trace, self._reading = None, False

    def reset(self) -> None:
        """Restore the default attention kernels, after ``tracing`` with ``twice``."""
        self._kernels.close()

    def remove_hooks(self) -> None:
        """Remove all hooks, and restore the model's attention implementation."""
        self.reset()
        remove_hooks(self._hooks)
        switch_back(self._model, self._implementation)
        self._implementation = None
        if self._donating is not None:
            torch._functorch.config.donated_buffer = self._donating

    def _differentiable_attention(self) -> AbstractContextManager[Any]:
        if fault := lacks_second_derivative(self._model):
            raise ModelError(f"{fault} {INSTEAD}")
        kernel_name = implementation(self._model)
        if kernel_name == "sdpa":
            # The fused kernels have no second derivative (pytorch#116350), but this one does.
            kernel = sdpa_kernel(SDPBackend.MATH)
            if not recomputes(self._model):
                return kernel
            # Blocks are computed again in the backward, where the same kernel must be chosen.
            self._kernels.enter_context(kernel)
            return nullcontext()
        if kernel_name not in PLAIN:
            self._implementation = switch_to_eager(
                self._model, purpose="Second derivatives", instead=INSTEAD
            )
        return nullcontext()

    def _root(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        trace = self._trace
        if trace is None or self._reading:
            return None
        if module is not self._embedding or trace.words is not None:
            if not output.requires_grad:
                return None
            cut: Tensor = _Cut.apply(output, output.detach())  # type: ignore[no-untyped-call]
            trace.others.append((partial(module, *args), cut))
            return cut
        ours = output.transpose(0, 1) if self._time_first else output
        shape = ours.shape
        if self._texts is not None:
            ours = ours.reshape(self._texts, -1, shape[-1])
        values = at_least_single(ours.detach())
        shifted = (values if self._shift is None else values + self._shift).to(ours.dtype)
        if ours.requires_grad:
            trace.words = _Cut.apply(ours, shifted)  # type: ignore[no-untyped-call]
        else:
            trace.words = shifted.requires_grad_()
        assert trace.words is not None
        # Not a leaf: decoders pass it to their first block, whose hooks may not accept a leaf
        # (PyTorch's FLOP counter, which measures the cost of a step).
        words = trace.words if trace.words.grad_fn is not None else trace.words.clone()
        words = words.view(shape)
        return words.transpose(0, 1) if self._time_first else words

    def _pause(self, module: nn.Module, _: Any) -> None:
        if self._reading:
            torch.set_grad_enabled(False)

    def _note(self, module: nn.Module, _: Any, output: Any) -> Any:
        if self._trace is None:
            return None
        state = output[0] if isinstance(output, tuple) else output
        if not self._reading:
            self._trace.states.append(state)
            return None
        # The next block gets no graph, so only the graph of the last block reaches the head. Which
        # block is the last is not known before (a shared one is called once per layer).
        torch.set_grad_enabled(True)
        self._trace.states.append(state.detach().requires_grad_())
        # A copy, because later operations may write into it.
        state = self._trace.states[-1].clone()
        return (state, *output[1:]) if isinstance(output, tuple) else state


class _Cut(torch.autograd.Function):
    """Return other values for a tensor, and block its gradient.

    The tensor stays in the graph, because distributed training needs a path from the logits to
    every parameter.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None]:
        return None, None


def compiled(model: nn.Module) -> bool:
    return hasattr(model, "_orig_mod")


def lacks_second_derivative(model: nn.Module) -> str:
    """Return why a model cannot be differentiated twice, with a remedy; empty if it can."""
    if compiled(model):
        return "A compiled model has no second derivative. Do not compile it."
    current, inner = implementation(model), innermost(model)
    if current in (*PLAIN, "sdpa") or hasattr(inner, "set_attn_implementation"):
        return ""
    return (
        f"The attention {current!r} of {type(inner).__name__} has no second derivative. Load the "
        "model with attn_implementation='sdpa' or 'eager'."
    )


def layer_means(output: Any, mask: Tensor) -> Tensor:
    """Return the mean of each layer's hidden states over the tokens of a row, [B, L, D].

    The first layer is the embeddings, the last one the head's input. Middle layers represent the
    kind of text, which the last ones lose in favor of the class. For an encoder-decoder the layers
    are those of the encoder. ``mask`` is 1 at tokens, 0 at padding: [B, T], or [B, N * T] for N
    choices.
    """
    layers = getattr(output, "hidden_states", None) or getattr(output, "encoder_hidden_states", ())
    if not layers:
        raise ModelError(
            f"{type(output).__name__} has no hidden states. Call the model with "
            "output_hidden_states=True."
        )
    shape = (*mask.shape, layers[-1].shape[-1])
    for layer in layers:
        if layer.shape[-1] != shape[-1] or layer.numel() != math.prod(shape):
            raise ModelError(
                f"Expected one hidden state per token and layer, got {list(layer.shape)}. This "
                "architecture is not supported."
            )
    weight = (mask.float() / mask.sum(dim=1, keepdim=True)).unsqueeze(-1)
    # Not a matrix product: autocast would compute that in half precision.
    means = [(layer.float().reshape(shape) * weight).sum(dim=1) for layer in layers]
    return torch.stack(means, dim=1)
