"""Attention that can be read and differentiated twice: its implementation, and switching it."""

from __future__ import annotations

import logging

from torch import nn

from temper.errors import ModelError
from temper.models.probing import innermost

logger = logging.getLogger(__name__)

PLAIN = (None, "eager")
"""Implementations made of elementary operations; None is a model that knows no other."""


def implementation(model: nn.Module) -> str | None:
    """Return the name of a model's attention implementation, None where it has but one.

    Args:
        model: The network.
    """
    own = getattr(getattr(innermost(model), "config", None), "_attn_implementation", None)
    return None if own is None else str(own)


def switch_to_eager(model: nn.Module, *, purpose: str, instead: str) -> str | None:
    """Let a model compute its attention by elementary operations.

    Args:
        model: The network.
        purpose: What needs it, as the subject of a sentence.
        instead: What the reader may do where the model cannot be switched.

    Returns:
        The name of what it was, for ``switch_back``; None where nothing had to change.

    Raises:
        ModelError: If it cannot be switched.
    """
    own, inner = implementation(model), innermost(model)
    if own in PLAIN:
        return None
    try:
        inner.set_attn_implementation("eager")  # type: ignore[operator]
    except (AttributeError, ValueError) as error:
        raise ModelError(
            f"{purpose} need eager attention, and {type(inner).__name__} cannot be switched to it "
            f"from {own!r}: {error}. {instead}"
        ) from error
    logger.info("Attention is 'eager' in place of %r: %s need it.", own, purpose.lower())
    return own


def switch_back(model: nn.Module, own: str | None) -> None:
    """Give a model the attention back that ``switch_to_eager`` took from it.

    Args:
        model: The network.
        own: What ``switch_to_eager`` returned.
    """
    if own is not None:
        innermost(model).set_attn_implementation(own)  # type: ignore[operator]
