"""Load models whose outputs have no class names: language models, multiple choice, spans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from temper.errors import ModelError
from temper.heads import HEADS, Completions, Head, Spans
from temper.models.adapters import add_adapter
from temper.models.heads import draw_head
from temper.models.hf import (
    configured,
    device_of,
    load_tokenizer,
    load_weights,
    loading,
    put_on,
    set_padding,
)
from temper.models.kinds import saved_head
from temper.models.names import resolve
from temper.models.windows import set_windows
from temper.seeding import derive_seed, seeded

HEADED = frozenset(name for name, head in HEADS.items() if head.has_classes and not head.named)
"""Names of the heads of these models."""


def load_headed(
    name: str,
    head: str,
    *,
    device: str = "cpu",
    seed: int = 0,
    new_adapter: Mapping[str, Any] | None = None,
    trained: bool = False,
) -> tuple[Any, Any]:
    """Load a language model, or a model for multiple choice or spans, and its tokenizer.

    Args:
        name: A short name, a Hub id, a folder with a checkpoint, or one with a PEFT adapter.
        head: A key of `HEADED`.
        device: Where to put the model; ``auto`` takes a GPU if there is one.
        seed: Seed of a new head or adapter.
        new_adapter: Arguments of the PEFT configuration of an adapter to train (`add_adapter`).
        trained: Whether a missing head is initialized for training; it must exist in a decoder-only
            language model.

    Returns:
        (model, tokenizer), the model in evaluation mode.
    """
    where = device_of(device)
    source = resolve(name)
    wanted = HEADS[head]
    with loading(name):
        source, adapter, base, config = configured(source, name)
        has_head = saved_head(config, adapter) is wanted
        writes = issubclass(wanted, Completions)
        # BART is published without its head, which is its embedding table.
        if not has_head and not (trained and (not writes or config.is_encoder_decoder)):
            kind = "causal language model" if writes else f"model with a head for {head}"
            raise ModelError(
                f"{name!r} is no {kind} (architectures: {config.architectures}). Prompts with "
                "completions need a language model, such as SmolLM2, or an encoder-decoder, such "
                "as T5. Other data needs an encoder."
            )
        tokenizer = load_tokenizer(source, name, base=base)
        set_padding(tokenizer, config, name)
        if wanted is Spans:
            config.num_labels = 2
        new_head = not writes and (not has_head or adapter is not None)
        with seeded(derive_seed(seed, "head")):
            model, drawn = load_weights(wanted.auto_class, base, config, new_head=new_head)
            if not has_head and not writes:
                # Another head may have weights of the same names and sizes.
                drawn = sorted({*drawn, *draw_head(model)})
        # Nothing else in the folder of an adapter identifies the head.
        model.config.architectures = [type(model).__name__]
        # The checkpoint may be a classifier with windows, of which only the encoder is used.
        set_windows(model, None)
        if adapter is not None:
            model = put_on(model, source)
    if new_adapter is not None:
        model = add_adapter(model, new_adapter, drawn=drawn, seed=seed)
    return model.eval().to(where), tokenizer


def checkpoint_head(name: str) -> type[Head]:
    """Return the head of a checkpoint by its config, without reading its weights."""
    with loading(name):
        _, adapter, _, config = configured(resolve(name), name)
    return saved_head(config, adapter)


def is_encoder_decoder(name: str) -> bool:
    """Return whether a checkpoint is an encoder-decoder, without reading its weights."""
    with loading(name):
        return bool(configured(resolve(name), name)[-1].is_encoder_decoder)
