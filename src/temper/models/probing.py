"""Find the embedding module and dropout sites of a network, and switch its attention kernel."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from temper.errors import ModelError
from temper.models.blocks import remove_hooks
from temper.models.modes import in_mode
from temper.models.passes import Recording, SiteKey
from temper.models.sites import SiteContext, SiteControl
from temper.seeding import seeded
from temper.types import Batch


@dataclass(frozen=True)
class Place:
    """Where a network's embeddings can be perturbed.

    Args:
        module: The embedding module that is called with the encoder's input ids.
        call: Which of the module's calls in a forward this is, from 1.
        time_first: Whether its input is [T, B] (XLNet).
        first_block: The block that runs first; None in a network without blocks.
        block_width: D of that block's input.
    """

    module: nn.Embedding
    call: int
    time_first: bool
    first_block: nn.Module | None
    block_width: int


HIDDEN = "hidden_states"
"""Keyword argument of blocks for their input, if it is not the first positional argument."""


def hidden_state(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the hidden state among the arguments of a block; None if there is none."""
    return args[0] if args else kwargs.get(HIDDEN)


def with_state(
    state: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a block with ``state`` as hidden state."""
    return ((state, *args[1:]), kwargs) if args else (args, {**kwargs, HIDDEN: state})


def innermost(model: nn.Module) -> nn.Module:
    """Return the model inside a PEFT wrapper, or the model itself."""
    base = getattr(model, "get_base_model", None)
    return base() if callable(base) else model


def probe(
    model: nn.Module,
    batch: Batch,
    *,
    blocks: Sequence[tuple[str, nn.Module]],
    control: SiteControl,
    extra: Callable[[Batch], dict[str, Any]],
) -> tuple[Place, list[SiteKey], bool]:
    """Run one forward of one row to find the embedding module and the dropout sites.

    The embedding module is the one that is called with the input ids. ``get_input_embeddings()``
    does not help: T5 and BART call another module, and their decoders call one with shifted ids.
    ``extra`` returns further arguments of the forward.

    Returns:
        The embedding module, the dropout sites on hidden states in the order of the forward, and
        whether any of them acts on tokens (BART's only dropout layer is in its head).

    Raises:
        ModelError: Not exactly one embedding module is called with the input ids.
    """
    if "input_ids" not in batch.inputs:
        raise ModelError(
            f"The batch has no 'input_ids' to perturb, only {sorted(batch.inputs)}. Pass the "
            "output of the model's tokenizer."
        )
    row = batch.take(torch.zeros(1, dtype=torch.long, device=batch.device))
    if row.sequences[0].shape == (1, 1):
        # Rows and tokens must differ in number, to distinguish [B, T] from [T, B].
        row = row.repeat(2)
    (ids, mask), log = row.sequences, Recording()
    matches: list[tuple[bool, str, nn.Embedding, int, bool]] = []
    calls: Counter[nn.Module] = Counter()
    first: list[tuple[nn.Module, int]] = []

    def see(name: str, module: nn.Embedding, args: tuple[Any, ...], _: Any) -> None:
        calls[module] += 1
        given = args[0] if args else None
        if not isinstance(given, Tensor) or given.dtype != ids.dtype:
            return
        for time_first, expected in ((False, ids), (True, ids.T)):
            if given.shape == expected.shape and torch.equal(given, expected):
                same_memory = given.data_ptr() == ids.data_ptr()
                matches.append((same_memory, name, module, calls[module], time_first))
                return

    def see_block(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = hidden_state(args, kwargs)
        first.append((module, int(hidden.shape[-1]) if isinstance(hidden, Tensor) else 0))

    hooks = [
        module.register_forward_hook(partial(see, name))
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding)
    ]
    hooks += [block.register_forward_pre_hook(see_block, with_kwargs=True) for _, block in blocks]
    try:
        control.begin(SiteContext(mask, log=log))
        with in_mode(model, training=True), torch.no_grad(), seeded(0, batch.device):
            model(**row.inputs, **extra(row))
    finally:
        remove_hooks(hooks)
        control.reset()
    # In a short text, positions or token types may equal the ids, but not share their memory.
    in_memory = [match for match in matches if match[0]]
    matches = in_memory if len(in_memory) == 1 else matches
    if len(matches) != 1:
        seen = ", ".join(name for _, name, *_ in matches) or "none"
        raise ModelError(
            "Expected exactly one embedding module to be called with the input ids, found "
            f"{len(matches)} ({seen}). Temper perturbs that module's output; a model without it "
            "cannot be attacked."
        )
    _, _, module, call, time_first = matches[0]
    site = Place(module, call, time_first, *(first[0] if first else (None, 0)))

    def on_hidden_states(shape: tuple[int, ...]) -> bool:
        rows_at = 1 if time_first and len(shape) == 3 else 0
        return len(shape) in (2, 3) and shape[rows_at] == len(ids)

    sites = {key: shape for key, shape in log.shapes.items() if on_hidden_states(shape)}
    return site, list(sites), any(len(shape) == 3 for shape in sites.values())


logger = logging.getLogger(__name__)

PLAIN = (None, "eager")
"""Attention implementations of elementary operations; None is that of models without a choice."""


def implementation(model: nn.Module) -> str | None:
    """Return the name of a model's attention implementation; None if it has no choice."""
    implementation_name = getattr(
        getattr(innermost(model), "config", None), "_attn_implementation", None
    )
    return None if implementation_name is None else str(implementation_name)


def switch_to_eager(model: nn.Module, *, purpose: str, instead: str) -> str | None:
    """Switch a model to eager attention; return the name of the old one, for `switch_back`."""
    current, inner = implementation(model), innermost(model)
    if current in PLAIN:
        return None
    try:
        inner.set_attn_implementation("eager")  # type: ignore[operator]
    except (AttributeError, ValueError) as error:
        raise ModelError(
            f"{purpose} need eager attention, and {type(inner).__name__} cannot be switched to it "
            f"from {current!r}: {error}. {instead}"
        ) from error
    logger.info("Attention is 'eager' in place of %r: %s need it.", current, purpose.lower())
    return current


def switch_back(model: nn.Module, attention: str | None) -> None:
    """Undo `switch_to_eager`, given its result."""
    if attention is not None:
        innermost(model).set_attn_implementation(attention)  # type: ignore[operator]
