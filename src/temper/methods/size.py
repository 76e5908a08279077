"""The warning of a perturbation that is larger than the embeddings it moves."""

from __future__ import annotations

from temper.methods.method import Method


def size_warning(method: Method, *, moved: float, own: float) -> str:
    """Return the warning that a method's first perturbation exceeds the embeddings.

    Args:
        method: The method.
        moved: l2 norm of the perturbation of a row, the mean over a batch.
        own: The same of the row's embeddings, over its real tokens.

    Returns:
        The warning, with what to set instead; empty where the perturbation is the smaller one.
    """
    if not moved > own:
        return ""
    norms = f"{moved:.3g} against {own:.3g} a row, the mean over the first batch"
    text = f"The method {method.name!r} moves the embeddings by more than their own norm: {norms}."
    config = method.config.moves_embeddings
    if config is None:
        return f"{text} Texts are then lost in the perturbation. Make it smaller."
    value = float(getattr(config, config.SIZE))
    advice = f"Lower {config.SIZE}={value:g}: at {value * own / moved:.2g} the norms are equal"
    if getattr(config, "relative", None) is False:
        advice += ", or set relative=True and a share of the norm (.025, say)"
    return f"{text} Texts are then lost in the perturbation. {advice}."
