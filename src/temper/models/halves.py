"""The two halves of a network's blocks: passes that start in the middle, from a state of another.

A hidden state between two blocks can stand in for all that came before it, so that passes which
differ above it alone run the lower half once. No model is forked for it: the lower blocks' forwards
are replaced by one that hands its input on, and a hook before the first upper block puts the state
there. Whether that is all the blocks hand on is tried on one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from temper.errors import ModelError
from temper.models.blocks import of_encoder, recomputes, remove_hooks
from temper.models.modes import in_mode
from temper.models.probing import HIDDEN, hidden_state, innermost
from temper.types import Batch

INSTEAD = "Attack the words (site='word')."


class Halves:
    """Tell the lower half of the blocks, and leave it out of a forward.

    Args:
        model: The network, out of any distributed wrapper.
        blocks: Its repeated blocks, by name; of an encoder and a decoder only the encoder's count.
        batch: Any real batch, to try with.
        extra: Further arguments of the forward.

    Attributes:
        first: The block that the upper half begins with.
        width: D of its input.

    Raises:
        ModelError: If there are not two blocks, or more than a hidden state goes from one to the
            next.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[tuple[str, nn.Module]],
        batch: Batch,
        *,
        extra: dict[str, Any],
    ) -> None:
        encoder, _ = of_encoder(innermost(model), blocks)
        if len(encoder) < 2:
            raise ModelError(
                f"site='middle' needs two repeated blocks or more, each with weights of its own, "
                f"and {type(innermost(model)).__name__} has {len(encoder)}. {INSTEAD}"
            )
        half = len(encoder) // 2
        self._model, self._extra = model, extra
        self._lower = [block for _, block in encoder[:half]]
        self.first, self.width = encoder[half][1], 0
        self._sizes: dict[nn.Module, int] = {}
        self._try(batch)

    def check(self) -> None:
        """Refuse to start passes in the middle where a backward computes blocks again.

        Raises:
            ModelError: If gradient checkpointing is on.
        """
        if recomputes(self._model):
            raise ModelError(
                "Gradient checkpointing recomputes the blocks during backward, when passes that "
                "start in the middle can no longer be told from others. Switch it off, or attack "
                "the words (site='word')."
            )

    @contextmanager
    def skipping(self) -> Iterator[None]:
        """Leave the lower half out of the forward inside the block."""
        held = {block: vars(block).get("forward") for block in self._lower}
        for block in self._lower:
            block.forward = _handing_on(self._sizes[block])
        try:
            yield
        finally:
            for block, own in held.items():
                del block.forward
                if own is not None:
                    block.forward = own

    def _try(self, batch: Batch) -> None:
        """Run one row as it is and from its middle, and compare."""
        row = {name: tensor[:1] for name, tensor in batch.inputs.items()}
        states: list[Tensor] = []
        calls: list[nn.Module] = []

        def note(block: nn.Module, _: Any, output: Any) -> None:
            calls.append(block)
            self._sizes[block] = len(output) if isinstance(output, tuple) else 0

        def see(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            state = hidden_state(args, kwargs)
            states.extend([] if state is None else [state])

        def put(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return with_state(states[0], args, kwargs)

        whole = self._logits(row, [(block, note) for block in self._lower], see)
        alike, fault = len(states) == 1 and calls == self._lower, None
        if alike:
            self.width = states[0].shape[-1]
            try:
                with self.skipping():
                    again = self._logits(row, [], put)
                near = 1e-5 * whole.abs().max().item()
                alike = torch.allclose(again, whole, rtol=1e-5, atol=near)
            except torch.OutOfMemoryError:
                raise
            except (TypeError, ValueError, AttributeError, RuntimeError, LookupError) as error:
                alike, fault = False, error
        if not alike:
            raise ModelError(
                f"The blocks of {type(innermost(self._model)).__name__} hand on more than a hidden "
                f"state, so that no pass can start in the middle. {INSTEAD}"
            ) from fault

    def _logits(
        self,
        row: dict[str, Tensor],
        after: Sequence[tuple[nn.Module, Callable[..., Any]]],
        before: Callable[..., Any],
    ) -> Tensor:
        hooks: list[RemovableHandle] = [block.register_forward_hook(hook) for block, hook in after]
        hooks.append(self.first.register_forward_pre_hook(before, with_kwargs=True))
        try:
            with in_mode(self._model, training=False), torch.no_grad():
                output = self._model(**row, **self._extra)
        finally:
            remove_hooks(hooks)
        logits: Tensor = output if isinstance(output, Tensor) else output.logits
        return logits.float()


def with_state(
    state: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a block's arguments with another hidden state.

    Args:
        state: The hidden state.
        args: The block's arguments by position, of which the first is its hidden state.
        kwargs: Those by name, ``hidden_states`` where none is given by position.
    """
    return ((state, *args[1:]), kwargs) if args else (args, {**kwargs, HIDDEN: state})


def _handing_on(size: int) -> Callable[..., Any]:
    """Return a block's forward that hands its hidden state on, first of so many; alone for 0."""

    def forward(hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        return (hidden_states, *[None] * (size - 1)) if size else hidden_states

    return forward
