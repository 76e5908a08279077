"""Plain fine-tuning: the task loss on the unchanged batch."""

from __future__ import annotations

from temper.methods import Method, register


@register(
    "plain",
    summary="Plain fine-tuning",
    cost="3F",
    memory="none",
    paper="Devlin et al., NAACL 2019",
)
class Plain(Method):
    """Plain fine-tuning, which has no settings."""
